//! The process of one Watch call.

fn main() {}
