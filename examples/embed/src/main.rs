//! A program with a job engine inside. `cargo run -p embed` runs both halves and judges them.

mod own_runner;
mod own_store;
mod typed;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let place = tempfile::tempdir()?;
    let report = typed::run(place.path())?;
    println!("{report}");
    let report = own_runner::run()?;
    println!("{report}");
    println!("right: typed handlers, a store and a runner of this program's own");
    Ok(())
}
