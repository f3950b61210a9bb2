//! What can be broken: the list, and what each fault promises.

use std::{sync::LazyLock, time::Duration};

use anyhow::Result;
use rand::rngs::SmallRng;

use crate::{faults, site::Site};

/// What a kind cannot do without and not every machine or run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A small disk under Postgres: this process may mount one.
    Disk,
    /// Clocks that can be wrong for one process: a C compiler.
    Clocks,
    /// Services of another build beside those of this one.
    OtherBuild,
}

/// One thing broken for a while. Everything random in it was drawn when it was made.
pub struct Fault {
    what: String,
    begin: Option<Begin>,
    end: Option<End>,
}

type Begin = Box<dyn FnOnce(&mut Site) -> Result<End>>;
type End = Box<dyn FnOnce(&mut Site) -> Result<()>>;

impl Fault {
    /// What it does, with its parameters.
    pub fn describe(&self) -> &str {
        &self.what
    }

    /// Breaks it, once. Returns while it is broken, or, for what takes no time, when it has happened.
    ///
    /// # Errors
    /// When that could not be done; the site may be half broken then.
    pub fn begin(&mut self, site: &mut Site) -> Result<()> {
        self.end = self.begin.take().map(|begin| begin(site)).transpose()?;
        Ok(())
    }

    /// Ends it. Afterwards the servers it touched are whole and answer, their proxies are open, all processes are kept running. The services
    /// may still be recovering; nothing more is done for them.
    ///
    /// # Errors
    /// When that could not be reached.
    pub fn end(&mut self, site: &mut Site) -> Result<()> {
        self.end.take().map_or(Ok(()), |end| end(site))
    }
}

/// A fault of two steps: the first may hand something to the second.
pub(crate) fn steps<S: 'static>(
    what: impl Into<String>,
    begin: impl FnOnce(&mut Site) -> Result<S> + 'static,
    end: impl FnOnce(&mut Site, S) -> Result<()> + 'static,
) -> Fault {
    let begin = |site: &mut Site| {
        let begun = begin(site)?;
        Ok(Box::new(|site: &mut Site| end(site, begun)) as End)
    };
    Fault { what: what.into(), begin: Some(Box::new(begin)), end: None }
}

/// A fault that is over when it has happened.
pub(crate) fn at_once(what: impl Into<String>, begin: impl FnOnce(&mut Site) -> Result<()> + 'static) -> Fault {
    steps(what, begin, |_, ()| Ok(()))
}

/// A kind of fault.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Unique: `server-what`.
    pub name: &'static str,
    /// Longest time from the fault's end until every purchase process accepts again and there is no lag.
    pub bound: Duration,
    /// What the bound is made of.
    pub why: &'static str,
    /// Shortest and longest time between begin and end.
    pub hold: (Duration, Duration),
    /// Costs so much that it is drawn less often.
    pub rare: bool,
    /// What it cannot do without.
    pub needs: Option<Need>,
    /// What it touches: `kafka`, `redis`, `postgres`, `registry`, `purchase`, `orders`, `compensation`. Two faults at one time share none.
    pub uses: &'static [&'static str],
    /// Draws its parameters.
    pub make: Make,
}

/// How a kind draws a fault.
pub type Make = fn(&mut SmallRng) -> Fault;

/// A row of a family's table; `bound` in seconds.
pub(crate) const fn kind(
    name: &'static str,
    bound: u64,
    why: &'static str,
    hold: (Duration, Duration),
    uses: &'static [&'static str],
    make: Make,
) -> Kind {
    Kind { name, bound: seconds(bound), why, hold, rare: false, needs: None, uses, make }
}

/// The same, for a kind that is drawn less often.
pub(crate) const fn rare(kind: Kind) -> Kind {
    Kind { rare: true, ..kind }
}

/// The same, for a kind that is possible only with something special.
pub(crate) const fn needing(need: Need, kind: Kind) -> Kind {
    Kind { needs: Some(need), ..kind }
}

/// Those of the kinds that are possible on this site; the others are told, with the reason.
pub fn possible(kinds: &[Kind], site: &Site, say: &dyn Fn(&str)) -> Vec<Kind> {
    let lacked = |need: Option<Need>| need.and_then(|need| site.lacks(need));
    for need in [Need::Disk, Need::Clocks, Need::OtherBuild] {
        let names: Vec<&str> = kinds.iter().filter(|kind| kind.needs == Some(need)).map(|kind| kind.name).collect();
        if let Some(why) = site.lacks(need).filter(|_| !names.is_empty()) {
            say(&format!("left out: {}: {why}", names.join(", ")));
        }
    }
    kinds.iter().filter(|kind| lacked(kind.needs).is_none()).copied().collect()
}

/// All kinds.
pub fn kinds() -> &'static [Kind] {
    static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
        let families: [&[Kind]; 10] = [
            faults::processes::KINDS,
            faults::builds::KINDS,
            faults::clocks::KINDS,
            faults::crashes::KINDS,
            faults::network::KINDS,
            faults::kafka::KINDS,
            faults::redis::KINDS,
            faults::postgres::KINDS,
            faults::registry::KINDS,
            faults::everything::KINDS,
        ];
        families.concat()
    });
    &KINDS
}

/// Seconds, for the tables of kinds.
pub(crate) const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
