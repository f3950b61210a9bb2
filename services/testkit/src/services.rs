//! The real services as child processes in a world, killed when dropped.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use devstack::process::{Program, RestartPolicy, Supervised};

use crate::World;

/// For a service to say that it is ready, on a machine busy with other tests.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// For a service to end after SIGTERM: longer than any service's own deadline.
pub const END_DEADLINE: Duration = Duration::from_secs(40);

/// A service that dies again and again, as tests make it do, is always started again, and soon.
const RESTARTS: RestartPolicy = RestartPolicy {
    first_wait: Duration::from_millis(100),
    longest_wait: Duration::from_millis(500),
    quick: Duration::from_secs(1),
    quick_failures: 20,
};

/// Lines of a service's log that a failed test prints.
const TAIL: usize = 30;

/// One running service. A crash, or [`Service::kill`], has it started again; its addresses stay the same.
pub struct Service {
    pub process: Supervised,
    program: Program,
    http: Option<u16>,
    // After the process, which writes them.
    files: Files,
}

/// What a service leaves in the folder of its world; kept where a test failed.
struct Files {
    log: PathBuf,
    ready: PathBuf,
    folder: PathBuf,
}

impl World {
    /// Where files make this world's services die: [`infra::crash`]. There only once a test has made it.
    pub fn crash_points(&self) -> PathBuf {
        devstack::kept_logs().join(format!("{}-crash-points", self.connections().prefix))
    }

    /// Starts `doorbuster run NAME` in this world and waits until it is ready. `more`: variables on top of [`World::env_vars`].
    pub fn start_service(&self, name: &str, more: &[(&str, &str)]) -> Service {
        let service = self.launch_service(name, name, more);
        service.wait_ready();
        service
    }

    /// As [`World::start_service`] under a name of its own, for several of one kind, without waiting.
    pub fn launch_service(&self, service: &str, name: &str, more: &[(&str, &str)]) -> Service {
        self.launch_service_with(service, name, more, |_| ())
    }

    /// As [`World::launch_service`], where the program or what is done when it fails must be another.
    pub fn launch_service_with(
        &self,
        service: &str,
        name: &str,
        more: &[(&str, &str)],
        change: impl FnOnce(&mut Program),
    ) -> Service {
        let folder = devstack::kept_logs().join(&self.connections().prefix);
        let mut program = Program::new(name, binary(), &folder);
        program.args = ["run", service].map(str::to_owned).to_vec();
        program.restarts = RESTARTS;
        change(&mut program);
        let ready_file = folder.join(format!("{name}.ready"));
        // Fixed, so that a service keeps its address when it is started again.
        let http = (service == "purchase").then(|| devstack::free_port().expect("a port is free"));
        program.env = self.env_vars();
        if let Some(port) = http {
            program.env.push(("DOORBUSTER_PURCHASE_LISTEN".to_owned(), format!("127.0.0.1:{port}")));
        }
        program.env.push(("DOORBUSTER_READY_FILE".to_owned(), ready_file.to_string_lossy().into_owned()));
        program.env.push(("DOORBUSTER_CRASH_POINTS".to_owned(), self.crash_points().to_string_lossy().into_owned()));
        program.env.extend(more.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        let process = Supervised::start(program.clone()).expect("a service can be started");
        let files = Files { log: process.log().to_path_buf(), ready: ready_file, folder };
        Service { process, program, http, files }
    }
}

impl Service {
    /// Where buyers call a purchase service.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.http.expect("only purchase listens for buyers"))
    }

    /// The port of health and metrics of the present run, once it listens.
    pub fn admin_port(&self) -> Option<u16> {
        let listening: serde_json::Value = serde_json::from_slice(&std::fs::read(&self.files.ready).ok()?).ok()?;
        listening["admin"].as_str()?.rsplit_once(':')?.1.parse().ok()
    }

    pub fn is_ready(&self) -> bool {
        self.admin_port().is_some_and(|port| devstack::http_get(port, "/readyz").is_ok_and(|(status, _)| status == 200))
    }

    /// Waits until it says that it is ready; panics with the end of its log if it does not.
    #[track_caller]
    pub fn wait_ready(&self) {
        self.process.wait_until(READY_DEADLINE, || self.is_ready()).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Kills it (SIGKILL), and waits until its next run is ready.
    #[track_caller]
    pub fn crash(&self) {
        self.kill().expect("the service is running");
        self.wait_ready();
    }

    /// Kills it (SIGKILL); it is started again.
    ///
    /// # Errors
    /// When it is not running: it ended before, and is about to be started again.
    pub fn kill(&self) -> devstack::Result<()> {
        self.forget_address();
        self.process.kill()
    }

    /// Ends it (SIGTERM) and starts it again at the same address. One that has ended is only started.
    ///
    /// # Errors
    /// When it did not end within its deadline (it was killed and started all the same), or cannot be started.
    pub fn restart(&mut self) -> devstack::Result<()> {
        let ended = self.process.terminate(END_DEADLINE);
        self.forget_address();
        self.process = Supervised::start(self.program.clone())?;
        ended.map(drop)
    }

    /// What the next [`Service::restart`] starts, and with which variables.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// So that the address of a run that is over is not asked.
    fn forget_address(&self) {
        let _ = std::fs::remove_file(&self.files.ready);
    }

    /// Asks it to end (SIGTERM) and checks that it does so with 0.
    #[track_caller]
    pub fn end(&self) {
        let status = self.process.terminate(END_DEADLINE).unwrap_or_else(|error| panic!("{error}"));
        assert!(status.success(), "{} ended with {status}:\n{}", self.process.name(), self.process.log_tail(TAIL));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the end of {}\n{}", self.process.log().display(), self.process.log_tail(TAIL));
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The folder goes with the last service of the world; before, it is not empty.
            let _ = std::fs::remove_file(&self.log);
            let _ = std::fs::remove_file(&self.ready);
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Runs `doorbuster` with these arguments in this world; gives its exit code and what it printed.
pub fn doorbuster(world: &World, args: &[&str]) -> (i32, String) {
    let mut command = std::process::Command::new(binary());
    command.args(args).envs(world.env_vars());
    let output = command.output().expect("doorbuster can be started");
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code().unwrap_or(-1), text)
}

/// `DOORBUSTER_BIN`, else the binary that the same build made beside this test.
pub fn binary() -> PathBuf {
    let built = || {
        let test = std::env::current_exe().ok()?;
        // target/debug/deps/this-test-1234, or a tool's target/debug/tool -> target/debug/doorbuster
        test.ancestors().skip(1).take(2).map(|folder| folder.join("doorbuster")).find(|path| path.is_file())
    };
    let found = std::env::var_os("DOORBUSTER_BIN").map(PathBuf::from).or_else(built);
    found.filter(|path| Path::is_file(path)).expect("the binary `doorbuster` is built: run `make test`")
}
