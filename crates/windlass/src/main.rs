//! The one program: a launcher where its server asks for one, else the command line.
//!
//! A launcher must stay small, so nothing may happen before the question whether this is one.

fn main() {
    windlass::runner::launcher::take_over_if_asked();
}
