//! The TLS provider: one for the whole process.

/// Sees to it that there is a TLS provider before anything that may speak TLS is made; without one, making it panics.
/// Programs that link a second provider get this one all the same. Cheap, and once more does no harm.
pub fn ensure_provider() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
