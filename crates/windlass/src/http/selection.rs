//! The words by which jobs are chosen: `queue:a,b state:failed run:r-…`, into what a store can look up.

use super::problem::Problem;
use crate::store::Filter;

/// Commas mean or, spaces and; a word that is not known is refused, so that a slip never widens a choice.
pub(super) fn parse(text: &str) -> Result<Filter, Problem> {
    let mut filter = Filter::default();
    for word in text.split_whitespace() {
        let unknown = || {
            Problem::refused(format!("cannot read {word:?} in the selector"))
                .hint("it knows queue:NAME, state:STATE and run:ID; commas mean or, spaces and")
        };
        let (key, values) = word.split_once(':').ok_or_else(unknown)?;
        let mut values = values.split(',');
        match key {
            "queue" if filter.queues.is_empty() => filter.queues.extend(values.map(str::to_owned)),
            "state" if filter.states.is_empty() => {
                for value in values {
                    filter.states.push(value.parse().map_err(Problem::refused)?);
                }
            }
            "run" if filter.run.is_none() => match (values.next().map(str::parse), values.next()) {
                (Some(Ok(run)), None) => filter.run = Some(run),
                (Some(Err(_)) | None, _) | (_, Some(_)) => return Err(unknown()),
            },
            "queue" | "state" | "run" => {
                return Err(Problem::refused(format!("{key}: stands twice in the selector")).hint("join values with commas"));
            }
            _ => return Err(unknown()),
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::life_cycle::State;

    #[test]
    fn reads_what_it_knows_and_refuses_the_rest() {
        let filter = parse(" queue:a,b  state:failed,ready run:r-0123456789.2").unwrap();
        assert_eq!(filter.queues, ["a", "b"]);
        assert_eq!(filter.states, [State::Failed, State::Ready]);
        assert_eq!(filter.run.unwrap().generation, 2);
        assert_eq!(parse("").unwrap(), Filter::default());
        for bad in ["failed", "state:done", "run:x", "run:r-0123456789,r-0123456789", "queue:a queue:b", "age:1h"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
