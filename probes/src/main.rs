//! The stand-in for the Watch.

fn main() {}
