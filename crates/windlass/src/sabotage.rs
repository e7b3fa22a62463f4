//! The switch of the planted bugs at the edge: read once from `WINDLASS_SABOTAGE`, in builds that have them.
//!
//! The list is in `windlass_core::sabotage`. Without the feature `sabotage` everything here is a constant or empty,
//! and a test holds that the program does not even contain the names.

use std::process::Command;

pub use windlass_core::sabotage::{Check, PLANTS, Plant, Sabotage};

/// What names the sabotage.
pub const VARIABLE: &str = "WINDLASS_SABOTAGE";

#[cfg(not(feature = "sabotage"))]
mod switch {
    use super::{Command, Sabotage};

    /// Whether this promise is to be broken: never, in a build without the feature.
    pub const fn on(_: Sabotage) -> bool {
        false
    }

    /// There is nothing to choose.
    pub const fn choose() {}

    /// There is nothing to pass on.
    pub fn pass_on(_: &mut Command) {}
}

#[cfg(feature = "sabotage")]
mod switch {
    use super::{Command, PLANTS, Sabotage, VARIABLE};
    use std::sync::Once;

    /// Whether this promise is to be broken.
    pub fn on(sabotage: Sabotage) -> bool {
        choose();
        windlass_core::sabotage::on(sabotage)
    }

    /// Takes the choice over from the environment, once.
    ///
    /// # Panics
    /// If the environment names a sabotage that is not in the list: whoever asked would take silence for proof.
    pub fn choose() {
        static CHOSEN: Once = Once::new();
        CHOSEN.call_once(|| {
            let Some(name) = std::env::var_os(VARIABLE) else { return };
            let plant = PLANTS.iter().find(|plant| *plant.name == *name);
            assert!(plant.is_some(), "no sabotage is called {name:?}");
            if let Some(plant) = plant {
                windlass_core::sabotage::choose(plant.sabotage);
            }
        });
    }

    /// A launcher gets no environment but this.
    pub fn pass_on(command: &mut Command) {
        command.envs(std::env::var_os(VARIABLE).map(|name| (VARIABLE, name)));
    }
}

pub use switch::{choose, on, pass_on};
