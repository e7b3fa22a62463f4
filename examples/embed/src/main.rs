//! A program with a job engine inside. `cargo run -p embed` runs both halves and judges them; `embed numbers DIR` runs
//! the second on a directory, and goes on there after it was killed.

mod own_archive;
mod own_runner;
mod own_store;
mod typed;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, dir] = &words[..]
        && verb == "numbers"
    {
        let report = own_runner::run(dir.as_ref(), own_runner::on_words)?;
        println!("{report}");
        return Ok(());
    }
    let place = tempfile::tempdir()?;
    let report = typed::run(&place.path().join("typed"))?;
    println!("{report}");
    let report = own_runner::run(&place.path().join("numbers"), |_| Ok(()))?;
    println!("{report}");
    println!("right: typed handlers, a store and a runner of this program's own");
    Ok(())
}
