//! A PostgreSQL cluster of its own, reached over TCP on 127.0.0.1 only, without passwords unless they are wanted.
//!
//! Postgres refuses to run as root. When we are root, it runs as the user `postgres` that its package brings.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::{
    sys::signal::Signal,
    unistd::{User, geteuid},
};

use crate::{
    Result, Secured, StackError, ask,
    folder::{self, Folder},
    native,
    server::{Recipe, Server, Started},
    spawn::{self, Launch},
};

/// Connections of three services, their tests and the command line together stay far below it.
const MAX_CONNECTIONS: u32 = 300;

/// How to run it.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Whether a commit waits for the disk. Without, tests are quicker, and a killed *machine* may lose everything;
    /// a killed Postgres loses nothing either way.
    pub fsync: bool,
    /// Clients must come over TLS and with the password (SCRAM-SHA-256). A cluster keeps the password it was made with.
    pub secured: Option<Secured>,
    /// Further settings, as `name=value`; they win over ours.
    pub settings: Vec<String>,
    /// 0: a free one.
    pub port: u16,
    /// For data and log, kept; `None`: a temporary folder.
    pub dir: Option<PathBuf>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { fsync: true, secured: None, settings: Vec::new(), port: 0, dir: None }
    }
}

/// Makes a cluster where there is none, starts it and waits until it answers a query.
///
/// # Errors
/// When PostgreSQL is not installed, its user cannot enter the folder, or it does not answer in time; the error holds
/// the end of its log.
pub fn start(options: PostgresOptions) -> Result<Server> {
    let folder = Folder::open(options.dir.as_deref())?;
    let programs = native::postgres_programs()?;
    let data = folder.path().join("data");
    let account = Account::for_folder(folder.path())?;
    make_cluster(&programs, &data, &account, &options)?;
    let endpoint_of = |port| match &options.secured {
        None => format!("postgresql://postgres@127.0.0.1:{port}/postgres"),
        Some(secured) => format!("postgresql://postgres:{}@127.0.0.1:{port}/postgres?sslmode=require", secured.password),
    };
    Server::start("postgres", folder, &[options.port], |folder, ports| {
        let port = ports[0];
        let on = if options.fsync { "on" } else { "off" };
        let mut settings = vec![
            "listen_addresses=127.0.0.1".to_owned(),
            // A socket's path may be 107 bytes long, a folder's longer.
            "unix_socket_directories=".to_owned(),
            format!("port={port}"),
            format!("max_connections={MAX_CONNECTIONS}"),
            format!("fsync={on}"),
            // Always: a commit is in the kernel's hands before it is acknowledged, so a kill of Postgres loses none.
            "synchronous_commit=on".to_owned(),
            format!("full_page_writes={on}"),
            "timezone=UTC".to_owned(),
            "log_timezone=UTC".to_owned(),
            "log_checkpoints=off".to_owned(),
        ];
        if let Some(secured) = &options.secured {
            settings.extend(demand(secured, folder, &account)?);
        }
        settings.extend(options.settings.iter().cloned());
        let mut args = vec!["-D".to_owned(), data.to_string_lossy().into_owned()];
        args.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        let endpoint = endpoint_of(port);
        let launch = Launch {
            env: vec![("TZ".to_owned(), "UTC".to_owned())],
            cwd: Some("/".into()),
            account: account.options.clone(),
            ..Launch::new(programs.join("postgres"), args, folder.join("postgres.log"))
        };
        let (asked, data, psql) = (endpoint.clone(), data.clone(), programs.join("psql"));
        let recipe = Recipe::new(launch, endpoint, move |started| answers(started, &psql, &asked, &data));
        // Fast shutdown: open transactions are rolled back, nobody is waited for.
        Ok(Recipe { stop_signal: Signal::SIGINT, ..recipe })
    })
}

/// Runs one statement over the endpoint of a server, as `psql` does, and gives what it prints, rows by line.
///
/// # Errors
/// When `psql` is not installed or says that the statement failed.
pub fn query(endpoint: &str, statement: &str) -> Result<String> {
    psql(&native::postgres_programs()?.join("psql"), endpoint, statement)
}

fn psql(psql: &Path, endpoint: &str, statement: &str) -> Result<String> {
    let mut command = spawn::bound(psql, &[]);
    command.args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", statement, endpoint]);
    command.env("PGCONNECT_TIMEOUT", ask::TIMEOUT.as_secs().to_string());
    // The caller's own settings for other databases.
    for name in ["PGOPTIONS", "PGSERVICE", "PGPASSWORD", "PGSSLMODE"] {
        command.env_remove(name);
    }
    let output = spawn::complete(command, "psql")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Cheap first: Postgres' own pid file says "ready" once it listens. Then a real query.
fn answers(started: &Started<'_>, program: &Path, endpoint: &str, data: &Path) -> Result<(), String> {
    let text = fs::read_to_string(data.join("postmaster.pid")).map_err(|error| error.to_string())?;
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some(started.pid.to_string().as_str()) || lines.nth(6).map(str::trim) != Some("ready") {
        return Err("its pid file does not say ready".to_owned());
    }
    match psql(program, endpoint, "show data_directory") {
        Ok(found) if Path::new(&found) == data => Ok(()),
        Ok(found) => Err(format!("its port belongs to the Postgres of {found}")),
        Err(error) => Err(error.to_string()),
    }
}

/// Settings under which everybody needs TLS and a password.
fn demand(secured: &Secured, folder: &Path, account: &Account) -> Result<Vec<String>> {
    let (certificate, key) = secured.place(folder)?;
    let access = folder.join("pg_hba.conf");
    folder::write(&access, "hostssl all all 127.0.0.1/32 scram-sha-256\n")?;
    // Postgres refuses a key that others may read.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))
        .map_err(StackError::system(format!("change the mode of {}", key.display())))?;
    account.own(&key)?;
    let files = [("ssl_cert_file", certificate), ("ssl_key_file", key), ("hba_file", access)];
    let files = files.map(|(name, file)| format!("{name}={}", file.display()));
    Ok(["ssl=on".to_owned()].into_iter().chain(files).collect())
}

/// Runs `initdb`, unless there is a cluster. An interrupted run leaves nothing that passes for one.
fn make_cluster(programs: &Path, data: &Path, account: &Account, options: &PostgresOptions) -> Result<()> {
    if data.join("PG_VERSION").is_file() {
        return Ok(());
    }
    let raw = data.with_extension("new");
    if raw.exists() {
        fs::remove_dir_all(&raw).map_err(StackError::system(format!("remove {}", raw.display())))?;
    }
    folder::make(&raw)?;
    account.own(&raw)?;
    let mut command = spawn::bound(&programs.join("initdb"), &account.options);
    command.current_dir("/").arg("-D").arg(&raw).args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]);
    if let Some(secured) = &options.secured {
        let file = data.with_extension("password");
        folder::write(&file, &secured.password)?;
        command.arg("--pwfile").arg(file);
    }
    command.args(if options.fsync { &["--no-instructions"][..] } else { &["--no-instructions", "--no-sync"] });
    spawn::complete(command, "initdb")?;
    fs::rename(&raw, data).map_err(StackError::system(format!("rename {}", raw.display())))
}

/// As whom Postgres runs.
struct Account {
    /// Options of `setpriv`.
    options: Vec<&'static str>,
    user: Option<User>,
}

impl Account {
    const POSTGRES: [&'static str; 5] = ["--reuid", "postgres", "--regid", "postgres", "--clear-groups"];
    /// Lets user postgres pass through folders that only root may enter, such as a checkout below /root.
    const PASS: [&'static str; 4] = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"];

    /// Gives a file or folder to the user as whom Postgres runs.
    fn own(&self, path: &Path) -> Result<()> {
        let Some(user) = &self.user else { return Ok(()) };
        chown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .map_err(StackError::system(format!("give {} to user postgres", path.display())))
    }

    fn for_folder(folder: &Path) -> Result<Account> {
        if !geteuid().is_root() {
            return Ok(Account { options: Vec::new(), user: None });
        }
        let user = User::from_name("postgres")
            .map_err(|error| StackError::system("look up the user postgres")(error.into()))?
            .ok_or_else(|| StackError::NotInstalled { what: "the user postgres".to_owned() })?;
        for options in [Self::POSTGRES.to_vec(), [&Self::POSTGRES[..], &Self::PASS[..]].concat()] {
            let mut command = spawn::bound(Path::new("test"), &options);
            // Not `-x`: access(2), which it calls, knows no capabilities.
            command.current_dir("/").arg("-d").arg(folder.join("."));
            if spawn::complete(command, "test").is_ok() {
                return Ok(Account { options, user: Some(user) });
            }
        }
        Err(StackError::FolderNotPassable { folder: folder.to_path_buf() })
    }
}
