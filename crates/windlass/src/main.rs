//! The one program: a launcher where its server asks for one, else the command line.

fn main() {
    windlass::runner::launcher::take_over_if_asked();
}
