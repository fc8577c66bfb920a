//! The page itself: plain files without a build step, embedded in the program.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};

/// The page.
pub(super) async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// Its script.
pub(super) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/app.js"))
}

/// Its style.
pub(super) async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("page/style.css"))
}

/// A file that is asked for anew each time, so that page and server are always of one build.
fn file(kind: &'static str, content: &'static str) -> Response {
    ([(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-cache")], content).into_response()
}
