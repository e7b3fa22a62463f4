//! The wheel: one turn is one transaction; nothing is polled, and waiting costs no CPU.

pub mod event;
pub mod handle;
