//! The config that the server runs by, and the one way to another: read, checked as a whole, handed to the engine.

use super::ReadConfig;
use crate::config::{Change, Loaded, diff};
use crate::engine::event::NewRules;
use crate::engine::{EngineHandle, Event};
use crate::error::{Failure, Kind};
use crate::handlers_dir::HandlersDir;
use crate::log::{Level, Log};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What was read last without fault, and how to read it again.
pub struct LiveConfig {
    read: Option<ReadConfig>,
    log: Log,
    current: Mutex<Arc<Loaded>>,
    handlers_dir: Option<Arc<HandlersDir>>,
}

impl std::fmt::Debug for LiveConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LiveConfig")
    }
}

impl LiveConfig {
    pub fn new(
        read: Option<ReadConfig>,
        current: Loaded,
        log: Log,
        handlers_dir: Option<Arc<HandlersDir>>,
    ) -> LiveConfig {
        LiveConfig { read, log, current: Mutex::new(Arc::new(current)), handlers_dir }
    }

    /// Nothing that it watches tells the engine anything more.
    pub(super) fn stop(&self) {
        self.handlers_dir.iter().for_each(|watched| watched.stop());
    }

    pub fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.lock())
    }

    /// Takes over what the file says now, or nothing of it; tells what has changed, in the log too.
    pub fn reload(&self, engine: &EngineHandle, by: String) -> Result<Vec<Change>, Failure> {
        let reloaded = self.take_over(engine, by);
        match &reloaded {
            Ok(changes) => {
                let restart = changes.iter().filter(|change| !change.live).count();
                let live = changes.len() - restart;
                self.log.say(Level::Info, "reloaded", vec![("changed", live.into()), ("restart", restart.into())]);
            }
            Err(failure) => {
                let error = ("error", failure.to_string().into());
                self.log.say(Level::Error, "reload refused, the old config stays", vec![error]);
                let mut current = self.lock();
                Arc::make_mut(&mut current).refused = Some(failure.to_string());
            }
        }
        reloaded
    }

    /// Reloads go one after the other, so that the last file read is the one that holds.
    fn take_over(&self, engine: &EngineHandle, by: String) -> Result<Vec<Change>, Failure> {
        let none = || Failure::new(Kind::Config, "this server was started without a config file");
        let read = self.read.as_ref().ok_or_else(none)?;
        let mut current = self.lock();
        let new = read()?;
        if let (Some(gone), None) = (&current.file, &new.file) {
            let text = format!("the config {} is not there any more", gone.display());
            return Err(Failure::new(Kind::Config, text).hint("an empty set of rules is a file with a comment in it"));
        }
        let (policies, slots, memory) = (new.config.policies(), new.config.slots, new.config.memory());
        let changes = diff(&current.entries(), &new.entries());
        let named =
            |live| changes.iter().filter(move |change| change.live == live).map(|change| change.name.clone()).collect();
        let (schedules, router) = (new.config.schedules.clone(), new.config.router.clone());
        let rules =
            NewRules { policies, slots, memory, schedules, router, by, changed: named(true), restart: named(false) };
        engine.ask(|answer| Event::Reload { new: rules, answer })?;
        if let Some(watched) = &self.handlers_dir {
            watched.change(new.config.handlers.as_ref().map(|handlers| handlers.path.clone()));
        }
        *current = Arc::new(new);
        Ok(changes)
    }

    /// Nothing is half done under this lock, so a holder that panicked left nothing wrong.
    fn lock(&self) -> MutexGuard<'_, Arc<Loaded>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
