//! What simulations came to, for the summary.

/// What a simulation came to, for the summary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) jobs: u64,
    pub(crate) starts: u64,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
    pub(crate) checks: u64,
    /// What people were told holds, and operations that they were told are done.
    pub(crate) steered: u64,
    pub(crate) operations: u64,
    /// How often END was answered.
    pub(crate) answers: u64,
    /// Jobs that kept workers, and workers elsewhere, were done with.
    pub(crate) kept: u64,
    pub(crate) leases: u64,
    /// Jobs that processes and calls with many were done with.
    pub(crate) together: u64,
    /// Times of schedules that fired, and jobs that waited for others.
    pub(crate) fired: u64,
    pub(crate) chained: u64,
    /// Starts that ended with the wish for another.
    pub(crate) snoozed: u64,
    pub(crate) trace: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.jobs += other.jobs;
        self.starts += other.starts;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.checks += other.checks;
        self.steered += other.steered;
        self.operations += other.operations;
        self.answers += other.answers;
        self.kept += other.kept;
        self.leases += other.leases;
        self.together += other.together;
        self.fired += other.fired;
        self.chained += other.chained;
        self.snoozed += other.snoozed;
    }
}
