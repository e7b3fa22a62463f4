//! The words in which a world's story is told.

use windlass::engine::Event;

/// The word of an event.
pub(crate) fn name(event: &Event) -> &'static str {
    match event {
        Event::Finished(_) => "finished",
        Event::Ingested(_) => "ingested",
        Event::Pushed { .. } => "pushed",
        Event::OpenRun { .. } => "open_run",
        Event::SealRun { .. } => "seal_run",
        Event::Amend { .. } => "amend",
        Event::Operate { .. } => "operate",
        Event::OpenOperation { .. } => "open_operation",
        Event::StageOperation { .. } => "stage_operation",
        Event::AcceptOperation { .. } => "accept_operation",
        Event::AbandonOperation { .. } => "abandon_operation",
        Event::Operations { .. } => "operations",
        Event::Watch { .. } => "watch",
        Event::AwaitRun { .. } => "await_run",
        Event::AwaitDrained { .. } => "await_drained",
        Event::CatchUp { .. } => "catch_up",
        Event::InboxRead { .. } => "inbox_read",
        Event::Follow { .. } => "follow",
        Event::Archived { .. } => "archived",
        Event::Forget { .. } => "forget",
        Event::Reload { .. } => "reload",
        Event::Workers { .. } => "workers",
        Event::Speak { .. } => "speak",
        Event::HandlerFiles(_) => "handler files",
        Event::Steer { .. } => "steer",
        Event::FireSchedule { .. } => "fire_schedule",
        Event::Schedules { .. } => "schedules",
        Event::Explain { .. } => "explain",
        Event::Closed { .. } => "closed",
        Event::Flights { .. } => "flights",
        Event::Dump { .. } => "dump",
        Event::Ask(_) => "ask",
        Event::Unask { .. } => "unask",
        Event::Nudge => "nudge",
        Event::Quiet => "quiet",
        Event::Drain => "drain",
        Event::Halt => "halt",
    }
}
