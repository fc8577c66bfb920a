//! Whole calls over real sockets: a Watch, a relay in a process of its own, the bridge as the plugin spawns it, and a
//! simulated engine that keeps the vendor's rules. Some run for a minute and more; they run at the same time.

#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic, too")]
#![expect(clippy::print_stdout, reason = "what they measure is printed")]

// By name the first: it takes the longest, and the others run beside it.
mod both_ways;
mod churn;
mod ends;
mod helper;
mod measure;
mod plugin;
mod slots;
mod soak;
mod support;
