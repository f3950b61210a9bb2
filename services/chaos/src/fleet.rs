//! The services of a run as child processes. One that dies is started again at once, and for ever: a service may have to wait for a server
//! longer than anything else does.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use devstack::{ProcessId, process::State};
use testkit::{Service, World, wait_until};

/// Processes of each kind, as a run begins and as every fault leaves it.
const USUAL: usize = 2;

/// What differs from a service's defaults in a run: orphans are found sooner, since all clocks here are one; reservations are counted often, so
/// that damage is found within a run; and a second breach soon after a first, which faults cause on purpose, is repaired as the first.
const SETTINGS: [(&str, &str); 3] = [
    ("DOORBUSTER_COMPENSATION_SWEEP_MARGIN_MS", "1000"),
    ("DOORBUSTER_COMPENSATION_DEEP_CHECK_MS", "3000"),
    ("DOORBUSTER_COMPENSATION_BREACH_MS", "1000"),
];

/// For a service to be ready after a start, on a machine busy with a sale.
pub const READY_DEADLINE: Duration = Duration::from_secs(60);

/// One kind of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Purchase,
    Orders,
    Compensation,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Purchase, Role::Orders, Role::Compensation];

    /// As `doorbuster run` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Role::Purchase => "purchase",
            Role::Orders => "orders",
            Role::Compensation => "compensation",
        }
    }
}

/// The processes, by kind and in the order of their numbers. The default has none.
#[derive(Default)]
pub struct Fleet {
    /// The binary of another build: every second process of a kind is of that one.
    pub(crate) other: Option<PathBuf>,
    services: [Vec<Service>; Role::ALL.len()],
}

impl Fleet {
    /// Starts all processes without waiting for them.
    pub(crate) fn start(world: &World, other: Option<PathBuf>) -> Self {
        let mut fleet = Self { other, ..Self::default() };
        Role::ALL.into_iter().for_each(|role| fleet.grow(world, role, USUAL));
        fleet
    }

    /// The processes of one kind.
    pub fn of(&self, role: Role) -> &[Service] {
        &self.services[role as usize]
    }

    pub(crate) fn of_mut(&mut self, role: Role) -> &mut Vec<Service> {
        &mut self.services[role as usize]
    }

    /// Where buyers call, one a purchase process; the same for the fleet's whole life.
    pub fn urls(&self) -> Vec<String> {
        self.of(Role::Purchase).iter().map(Service::url).collect()
    }

    /// Every process.
    pub fn all(&self) -> impl Iterator<Item = &Service> {
        self.services.iter().flatten()
    }

    /// Adds processes of this kind until there are `count`.
    pub(crate) fn grow(&mut self, world: &World, role: Role, count: usize) {
        for number in self.of(role).len()..count {
            let name = format!("{}-{number}", role.name());
            let build = self.build_of(number);
            let service = world.launch_service_with(role.name(), &name, &SETTINGS, |program| {
                program.restarts.quick_failures = u32::MAX;
                program.program = build;
            });
            self.of_mut(role).push(service);
        }
    }

    /// The binary of which the process of this number is when nothing is broken.
    pub(crate) fn build_of(&self, number: usize) -> PathBuf {
        self.other.clone().filter(|_| number % 2 == 1).unwrap_or_else(testkit::binary)
    }

    /// Ends the youngest processes of this kind (SIGTERM) until there are `count`.
    ///
    /// # Errors
    /// When one did not end in time; it was killed.
    pub(crate) fn shrink(&mut self, role: Role, count: usize) -> Result<()> {
        let services = self.of_mut(role);
        let leaving = services.split_off(count.min(services.len()));
        leaving.iter().try_for_each(|service| service.process.terminate(testkit::END_DEADLINE).map(drop))?;
        Ok(())
    }

    /// As many processes of this kind as a run begins with.
    pub(crate) fn as_usual(&mut self, world: &World, role: Role) -> Result<()> {
        self.shrink(role, USUAL)?;
        self.grow(world, role, USUAL);
        Ok(())
    }

    /// Waits until each process says that it is ready. Panics with its name if one does not.
    pub fn wait_ready(&self) {
        for service in self.all() {
            wait_until(READY_DEADLINE, &format!("{} to be ready", service.process.name()), || service.is_ready());
        }
    }

    /// Says which process is not kept running, or which kind has not as many as at the begin.
    ///
    /// # Errors
    /// The first that is found.
    pub fn check(&self) -> Result<()> {
        for role in Role::ALL {
            ensure!(self.of(role).len() == USUAL, "{} has {} processes", role.name(), self.of(role).len());
        }
        for service in self.all() {
            let process = &service.process;
            process.check().with_context(|| format!("{} is not started any more", process.name()))?;
            let kept = matches!(process.state(), State::Running | State::Waiting);
            ensure!(kept, "{} is {:?}", process.name(), process.state());
            let is_stopped = process.pid().and_then(ProcessId::of).is_some_and(ProcessId::is_stopped);
            ensure!(!is_stopped, "{} is paused", process.name());
        }
        Ok(())
    }
}
