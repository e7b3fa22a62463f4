//! Routes by which people steer: what they changed, and the config as it holds.

use super::app::{Call, json};
use super::problem::Problem;
use crate::api::steering::{Override, SetOverride, ShownConfig, Steered, Steering};
use crate::clock;
use crate::engine::event::{self, Event};
use crate::error::{Failure, Kind};
use crate::when;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use windlass_core::overrides::{self, Key, Target};
use windlass_core::time::Time;

/// One request changes at most so much.
const STEPS_MAX: usize = 1000;

pub(super) async fn overrides(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let all = call.app.read(|reads| Ok((reads.view)()?.overrides()?)).await?;
    let items = all.iter().map(Override::from).collect();
    json(StatusCode::OK, &crate::api::Page { items, next: None })
}

/// All of it is on disk and holds when it is answered, or nothing has changed.
pub(super) async fn steer(mut call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let asked: Steering = call.json().await?;
    if asked.set.len() + asked.unset.len() > STEPS_MAX {
        return Err(Problem::refused(format!("a request changes at most {STEPS_MAX} things")));
    }
    if asked.set.is_empty() && asked.unset.is_empty() {
        return Err(Problem::refused("the request asks for no change"));
    }
    let now = clock::now();
    let set = asked.set.iter().map(|set| new_override(set, now)).collect::<Result<Vec<_>, _>>()?;
    let unset = asked.unset.iter().map(|unset| {
        let key = unset.key.as_deref().map(key).transpose()?;
        Ok((Target::from_text(&unset.target), key))
    });
    let steering = event::Steering { set, unset: unset.collect::<Result<_, Problem>>()?, by: call.caller() };
    let steered = call.app.ask(|answer| Event::Steer { steering, answer }).await?;
    let list = |all: &[overrides::Override]| all.iter().map(Override::from).collect();
    json(StatusCode::OK, &Steered { removed: list(&steered.removed), overrides: list(&steered.in_force) })
}

fn key(word: &str) -> Result<Key, Problem> {
    let known = Key::ALL.map(Key::word).join(", ");
    Key::from_word(word).ok_or_else(|| Problem::refused(format!("no key {word:?} can be changed; expected {known}")))
}

fn new_override(asked: &SetOverride, now: Time) -> Result<overrides::Override, Problem> {
    let key = key(&asked.key)?;
    let number = match &asked.value {
        Value::Bool(truth) if matches!(key, Key::Paused | Key::Enabled) => Some(u32::from(*truth)),
        Value::Number(number) if !matches!(key, Key::Paused | Key::Enabled) => {
            number.as_u64().and_then(|number| u32::try_from(number).ok())
        }
        _ => None,
    };
    let expected = || match key {
        Key::Paused | Key::Enabled => "true or false",
        Key::Slots | Key::Weight | Key::Attempts => "a whole number",
    };
    let wrong = || Problem::refused(format!("`{}` is {}, expected {}", key.word(), asked.value, expected()));
    let value = number.ok_or_else(wrong)?;
    // A time that has passed reads as now, which the engine refuses.
    let until = asked
        .until
        .as_deref()
        .map(|text| when::time(text, now))
        .transpose()
        .map_err(|failure| Problem::from(Failure { kind: Kind::BadData, ..failure }))?;
    let (target, reason) = (Target::from_text(&asked.target), asked.reason.clone());
    Ok(overrides::Override { target, key, value, by: String::new(), since: now, until, reason })
}

/// The config as it was read last, key by key, with the overrides that are laid over it.
pub(super) async fn config(call: Call) -> Result<Response, Problem> {
    call.query(&[])?;
    let loaded = (call.app.config)();
    let all = call.app.read(|reads| Ok((reads.view)()?.overrides()?)).await?;
    json(StatusCode::OK, &ShownConfig::new(&loaded, all.iter().map(Override::from).collect()))
}
