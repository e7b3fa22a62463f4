//! Planted bugs: the closed list of one-line sabotages, and the check that must notice each of them.
//!
//! A check that cannot fail proves nothing. With the feature `sabotage`, which no shipped build has, one promise of
//! the product can be broken on purpose; `cargo xtask prove sabotage` breaks them one after the other and expects the
//! named check to fail. Without the feature `on` is a constant and nothing of this is in the program. This file owns
//! the list and the switch. It must not read the environment: the edge does that and chooses.

/// What notices a sabotage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// One test of `windlass`: of its library, or of the test binary of this name.
    Test { of: &'static str, name: &'static str },
    /// The simulator, within so many seeds.
    Sim { seeds: u32 },
}

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plant {
    pub sabotage: Sabotage,
    /// How it is chosen from outside.
    pub name: &'static str,
    /// What is broken, in one sentence.
    pub breaks: &'static str,
    pub caught_by: Check,
}

const fn unit(name: &'static str) -> Check {
    Check::Test { of: "lib", name }
}

const fn test(of: &'static str, name: &'static str) -> Check {
    Check::Test { of, name }
}

const fn sim(seeds: u32) -> Check {
    Check::Sim { seeds }
}

/// Makes the list of names and the table out of one row per sabotage.
macro_rules! sabotages {
    ($($name:ident: $breaks:literal, $caught_by:expr;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Sabotage { $(#[doc = $breaks] $name,)* }

        /// Every sabotage there is.
        pub const PLANTS: &[Plant] = &[$(Plant {
            sabotage: Sabotage::$name,
            name: stringify!($name),
            breaks: $breaks,
            caught_by: $caught_by,
        },)*];
    };
}

sabotages! {
    // The inbox: its format and its writers.
    NoLock: "writers append to an inbox file without taking its lock",
        unit("inbox::ingest::tests::read_to_end_names_who_holds_a_lock_and_does_not_wait_for_ever");
    NoSealCheck: "a writer does not look, after taking the lock, whether its file was sealed meanwhile",
        unit("inbox::writer::tests::a_sealed_file_is_left_at_the_next_record_and_a_seal_names_what_came_before");
    NoBootCheck: "a writer appends to a file of an earlier boot, whose end may be torn",
        unit("inbox::writer::tests::a_file_of_another_boot_and_a_foreign_file_are_put_aside");
    NoChecksum: "a record is believed though its checksum does not match",
        unit("inbox::scan::tests::every_flipped_bit_costs_only_the_records_it_touches");
    FenceNotEscaped: "data that holds the mark of a record's start is written as it is",
        unit("inbox::scan::tests::every_flipped_bit_costs_only_the_records_it_touches");
    ShortWriteAccepted: "a write that found no room for its end counts as accepted",
        unit("inbox::writer::tests::at_the_file_size_limit_a_job_is_rejected_whole");
    NoFsync: "a push without a server is answered before its inbox file is synced",
        test("it", "durable::a_push_without_a_server_is_told_after_file_and_directory_are_on_disk");
    NoDirectoryFsync: "a push without a server is answered before the name of its new inbox file is synced",
        test("it", "durable::a_push_without_a_server_is_told_after_file_and_directory_are_on_disk");
    // The inbox: its reader.
    TornLineRun: "a line that was cut by the next record becomes a job",
        unit("inbox::scan::tests::a_torn_record_of_any_length_costs_nobody_else");
    CursorBeforeSync: "the store notes an inbox file as read before the file is synced",
        test("it", "durable::an_inbox_file_is_synced_before_the_store_says_how_far_it_was_read");
    CursorOutsideTransaction: "the cursor of an inbox file is committed before the jobs that were read",
        test("store_embedded", "whichever_call_fails_every_answered_turn_is_kept");
    TailHashIgnored: "a file that was cut or replaced is read on from the old cursor",
        unit("inbox::ingest::tests::a_file_that_is_not_what_the_cursor_knew_is_read_again_under_a_new_origin");
    RemovedWhileOpen: "an inbox file is removed while a program still has it open",
        unit("inbox::ingest::tests::a_late_append_to_a_sealed_file_is_read_before_it_goes");
    RemovedBeforeCommit: "an inbox file is removed before the store has its last jobs on disk",
        unit("inbox::ingest::tests::a_file_stays_until_its_last_lot_is_committed");
    // The embedded store.
    LogNotSynced: "a commit `full` is answered before the log is synced",
        test("store_embedded", "a_power_cut_keeps_every_full_commit_also_across_checkpoints");
    SynchronousOff: "checkpoints sync neither the log nor the main file",
        test("store_embedded", "a_power_cut_keeps_every_full_commit_also_across_checkpoints");
    SyncTriedAgain: "after a failed sync the store goes on and syncs again",
        test("store_embedded", "a_full_commit_syncs_what_os_commits_left_also_where_it_changes_nothing");
    ClaimNotStored: "a claim is kept in memory and not written",
        unit("store::embedded::tests::crash::claims_that_never_began_go_back_as_they_were");
    SettleWithoutToken: "a settlement is taken for any start of the job, not for the one that is held",
        test("store_embedded", "the_embedded_store_passes_the_suite");
    CountOutsideTransaction: "the counters of runs are written after the commit, in a transaction of their own",
        test("store_embedded", "whichever_call_fails_every_answered_turn_is_kept");
    ClaimsForgotten: "recovery overlooks the claims of a dead server",
        unit("store::embedded::tests::crash::claims_that_never_began_go_back_as_they_were");
    ChunkGoneEarly: "a chunk counts as done while its last job is still claimed",
        unit("store::embedded::tests::runs::a_run_ends_once_when_sealed_and_done");
    DataGoneEarly: "the data of finished jobs goes before the archive has their turn",
        unit("store::embedded::tests::crash::outcomes_that_the_archive_lacks_come_back_with_their_data");
    EpochReused: "a store that is opened again keeps its epoch",
        unit("store::embedded::tests::crash::claims_that_never_began_go_back_as_they_were");
    BodyNotSynced: "the bodies of a flood are not synced before the turn that admits them",
        test("it", "durable::the_bodies_of_a_flood_are_on_disk_before_the_store_refers_to_them");
    BodyGoneEarly: "a body file goes before the turn that forgot its last chunk is on disk",
        unit("store::embedded::tests::bodies::a_body_file_goes_when_its_last_chunk_is_forgotten_on_disk");
    SharedGoneEarly: "what copies share goes with the first of them",
        unit("store::embedded::tests::copies::what_copies_share_goes_with_the_last_of_them");
    SealOvertakes: "a run is sealed before the inbox is read up to the places that its seal names",
        unit("store::embedded::tests::runs::a_seal_does_not_overtake_the_inbox");
    KeyOutsideTransaction: "a unique key is committed before the job that has it",
        test("store_embedded", "the_embedded_store_passes_the_suite");
    KeyFreedEarly: "the key of a job that must be alone while it is active is freed when it starts",
        test("store_embedded", "the_embedded_store_passes_the_suite");
    LotForgotten: "a server takes a lot of another one in without remembering its number",
        unit("engine::tests::lots::a_lot_that_is_sent_twice_arrives_once");
    LotGivenBack: "after a restart the jobs of a lot that is on its way are given back, as any that ran",
        unit("engine::tests::lots::a_lot_on_its_way_outlives_the_server_and_is_sent_under_the_same_number");
    AfterReleasedEarly: "a job that waits for several goes on when the first of them has succeeded",
        test("store_embedded", "the_embedded_store_passes_the_suite");
    // The store on a jobs table.
    LeaseIgnored: "a server takes others for dead whose lease is not over",
        test("store_sql", "others::two_servers_never_hold_the_same_job_and_learn_of_each_other");
    LateServerCommits: "a server that was taken for dead commits all the same",
        test("store_sql", "others::what_a_dead_server_held_goes_to_the_living_and_the_late_one_changes_nothing");
    HolderIgnored: "an end is written whoever holds the job",
        test("store_sql", "others::two_servers_never_hold_the_same_job_and_learn_of_each_other");
    OutboxForgotten: "ends that were set aside while the database was away are not written by the next process",
        test("store_sql", "others::ends_that_were_set_aside_are_written_by_the_next_process_once");
    DoubtForgotten: "a commit whose answer is lost is taken for one that is not there",
        test("sql", "away::a_commit_whose_answer_is_lost_is_done_once");
    // The turn.
    AnswerBeforeCommit: "pushers are answered before their jobs are committed", sim(20);
    StartBeforeCommit: "the starts of a turn that found no space are performed", sim(20);
    SettledWithoutSync: "outcomes go to the archive before their turn is on disk",
        unit("engine::tests::what_was_settled_or_ingested_survives_a_power_cut_once_others_know_of_it");
    IngestedWithoutSync: "the reader is told that a lot is committed before it is on disk",
        unit("engine::tests::what_was_settled_or_ingested_survives_a_power_cut_once_others_know_of_it");
    DueForgotten: "jobs whose time has come are not released", sim(20);
    ReportTwice: "a second report of the same start is settled too", sim(20);
    FellowsAlike: "jobs of different queues that share a flight end as the first of their report",
        unit("engine::tests::lonely::jobs_of_different_queues_that_share_a_flight_end_each_for_itself");
    DrainedWhileRunning: "everything counts as done while jobs still run", sim(20);
    WallClockTrusted: "a wait is stretched when the wall clock is set back",
        unit("engine::tests::clock::a_clock_that_is_set_back_stretches_no_wait");
    RunLimitForgotten: "a run goes on when its time is over or when it has failed too often",
        unit("engine::tests::terms::a_run_that_takes_too_long_is_stopped_and_ends");
    // What core decides.
    FailuresNotCounted: "the judge forgets the failures before this one", sim(20);
    NeighboursConvicted: "a job is convicted the first time that its server dies", sim(20);
    EndUnsealed: "a run ends although more jobs may be added to it", sim(20);
    EndTwice: "a run ends again whenever something happens to one of its jobs",
        unit("store::embedded::tests::runs::cancelling_the_last_job_ends_the_run_and_its_chunk_goes");
    SlotTooMany: "a crew starts one job more than it has slots", sim(20);
    RetriesStarve: "due retries wait for as long as fresh jobs come",
        unit("engine::tests::retries_and_weights_get_their_share_of_the_starts");
    WeightIgnored: "every queue gets the same share whatever its weight",
        unit("engine::tests::retries_and_weights_get_their_share_of_the_starts");
    // The launcher.
    LeaderOnlyKilled: "what a job left behind in sessions of its own is not killed",
        test("launcher", "trees::what_a_job_leaves_behind_dies_with_it_and_holds_nothing_up");
    SlotFreedEarly: "an outcome is reported while something of the job's tree still lives",
        test("launcher", "trees::a_job_is_reported_when_the_last_of_its_tree_is_dead");
    OutcomeTwice: "an outcome is reported twice", test("launcher", "trees::a_thousand_quick_jobs_leave_no_trace");
    StartNotNoted: "a start is not in the slot table while it runs",
        test("launcher", "trees::a_killed_launcher_takes_its_trees_along_and_is_replaced");
    CutOutputUnmarked: "output that was cut says that it is whole",
        unit("runner::launcher::output::tests::head_and_tail_survive_whatever_the_pieces");
    // Jobs that are done together.
    SurplusBelieved: "replies are believed though there are more of them than jobs", sim(40);
    NeighboursCharged: "a process that dies charges all the jobs that it had", sim(40);
    // The archive.
    ForgottenBeforeSync: "the store forgets a turn before the archive's segment is synced",
        test("it", "durable::the_archive_is_synced_before_the_store_forgets");
    NameNotSynced: "a file that is written durably is renamed, and its new name is not synced",
        test("it", "durable::the_archive_is_synced_before_the_store_forgets");
    ArchivedTwice: "a turn that the archive holds already is written again",
        unit("archiver::tests::an_old_turn_is_confirmed_and_not_written");
    // What one job leads to.
    HandlerAfterwards: "the job of an error handler is stored after the run of the failed one was looked at",
        unit("engine::tests::failure::a_handler_gets_the_failed_job_with_its_errors_and_the_run_waits_for_it");
    ListenerForgotten: "one of those who have subscribed to a message does not get it",
        unit("engine::tests::route::every_listener_gets_a_copy_in_the_run_and_the_message_is_done_with_them");
    // The doors.
    UnknownSaidRefused: "a lost answer is taken for a refusal, so the job is pushed again",
        unit("client::tests::only_a_sure_refusal_leads_to_the_inbox");
    NoServerLock: "two servers may have one data directory",
        test("cli", "a_held_lock_with_a_silent_holder_is_75_and_names_it");
    HostUnchecked: "requests that name another host are answered",
        unit("http::tests::refusals::over_tcp_the_host_must_be_this_one");
    // Workers, and what they share.
    MemoryUncounted: "jobs start whether their memory fits or not", sim(40);
    RateIgnored: "a queue with a rate starts as much as its slots take", sim(40);
    CheckpointLost: "what a job said of how far it has come is not stored", sim(40);
    LeaseForgotten: "a new server does not know what workers elsewhere have", sim(40);
    // Documents in directories.
    OutputNotSynced: "an output gets its name before it is synced",
        test("spool", "durable::an_output_is_on_disk_before_its_name_and_its_name_before_the_input_goes");
    TryForgotten: "the count of a document's tries is not stored",
        test("spool", "drivers::tries_are_counted_across_drivers_and_the_last_sets_aside_with_body_and_reason");
    InputGoneEarly: "a document's input goes before the name of its output is synced",
        test("spool", "durable::an_output_is_on_disk_before_its_name_and_its_name_before_the_input_goes");
    DeathUncharged: "a document whose driver died has used no try",
        test("spool", "drivers::tries_are_counted_across_drivers_and_the_last_sets_aside_with_body_and_reason");
    DoneTooEarly: "the output says that nothing more will come while others still have documents",
        test("spool", "foreign::the_claim_of_a_foreign_driver_is_left_alone_and_holds_the_end_up");
    LivingTakenOver: "a driver that lives is taken for dead, and what it has is given back",
        test("spool", "watchdog::whoever_kills_the_watchdog_harms_nothing");
    LeaseUnrenewed: "a driver gives no sign of life",
        test("spool", "tries::where_no_lock_tells_a_driver_elsewhere_lives_by_its_renewed_lease_alone");
    HalfLeft: "what a dead driver was writing stays where it is",
        test("spool", "watchdog::what_a_foreign_driver_held_goes_back_when_it_is_killed_and_another_is_started");
    StalemateUnseen: "nobody looks whether ready jobs are started",
        unit("engine::tests::stalemate::work_that_the_scheduler_forgot_is_found_and_done");
}

/// Whether this promise is to be broken: never, in a build without the feature.
#[cfg(not(feature = "sabotage"))]
pub const fn on(_: Sabotage) -> bool {
    false
}

/// Nothing is chosen.
#[cfg(feature = "sabotage")]
const NONE: u8 = u8::MAX;

#[cfg(feature = "sabotage")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(NONE);

/// Whether this promise is to be broken.
#[cfg(feature = "sabotage")]
pub fn on(sabotage: Sabotage) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == sabotage as u8
}

/// From now on this promise is broken.
#[cfg(feature = "sabotage")]
pub fn choose(sabotage: Sabotage) {
    CHOSEN.store(sabotage as u8, std::sync::atomic::Ordering::Relaxed);
}
