//! Clocks that are wrong, for single processes: a few lines of C (`clocks.c`), loaded before the C library, move the wall clock. libfaketime
//! would stop librdkafka: it moves the clock by which instants to wait for are made, but not the waiting (glibc's `cnd_timedwait`).

use std::{fs, path::PathBuf, process::Command, sync::OnceLock};

use crate::binary;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clocks.c");

/// The names of what [`wrong_clock`] sets.
pub const CLOCK_VARIABLES: [&str; 2] = ["LD_PRELOAD", "WRONG_CLOCK"];

/// The variables under which a program's clock differs by so many seconds. The library is compiled at the first call of a process.
///
/// # Errors
/// Where there is no C compiler, as a line for people.
pub fn wrong_clock(skew: i64) -> Result<[(String, String); 2], String> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(compile).as_ref()?.to_string_lossy().into_owned();
    let [preload, clock] = CLOCK_VARIABLES.map(str::to_owned);
    Ok([(preload, library), (clock, skew.to_string())])
}

/// Beside the binaries, by one rename: other processes do the same.
fn compile() -> Result<PathBuf, String> {
    let library = binary().with_file_name("libwrong_clock.so");
    let raw = library.with_extension(format!("{}.new", std::process::id()));
    let said = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&raw).arg(SOURCE).output();
    let said = said.map_err(|error| format!("no C compiler: {error}: run `make setup`"))?;
    if !said.status.success() {
        return Err(format!("{SOURCE} cannot be compiled: {}", String::from_utf8_lossy(&said.stderr)));
    }
    fs::rename(&raw, &library).map_err(|error| format!("{}: {error}", library.display()))?;
    Ok(library)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;
    use crate::world::JWT_SECRET;

    #[test]
    fn the_clock_of_a_program_is_wrong_by_as_much_as_it_is_told() {
        /// Far more than a run of the command line takes.
        const OFF: i64 = 120;
        for skew in [43_200, 3_600, 0, -3_600, -43_200] {
            let wrong = wrong_clock(skew).unwrap();
            let mut sign = Command::new(binary());
            let said = sign.args(["token", "somebody"]).env("DOORBUSTER_JWT_SECRET", JWT_SECRET).envs(wrong).output().unwrap();
            let signed = String::from_utf8_lossy(&said.stdout);
            let claims = jsonwebtoken::dangerous::insecure_decode::<serde_json::Value>(signed.trim()).unwrap().claims;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
            let then = claims["iat"].as_i64().unwrap();
            assert!((then - now - skew).abs() < OFF, "{skew} s moved {now} to {then}");
        }
    }
}
