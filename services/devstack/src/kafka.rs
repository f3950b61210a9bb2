//! Kafka brokers that are their own controllers (KRaft). One alone keeps no copies of anything: acknowledged means written
//! by it. Of three, each may fail: acknowledged means written by two.
//!
//! Each has three listeners: clients come to the first, whose address a broker may give out as another one (a fault
//! proxy's); the brokers and the controllers among themselves use the other two, which nothing stands in front of.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rand::RngCore;

use crate::{
    Result, Secured, StackError, ask,
    folder::{self, Folder},
    native, ports,
    server::{Recipe, START_DEADLINE, Server, Started},
    side_by_side,
    spawn::{self, Launch},
};

pub use ask::{Answer, Cluster, kafka_cluster as cluster, kafka_text as text};

/// Set to others than ours only where clients need TLS.
const LISTENER_PROTOCOLS: &str = "listener.security.protocol.map";
/// May do everything on a broker that demands logins.
const ADMIN: &str = "admin";

/// Copies of each record where there are as many brokers.
const REPLICATION: usize = 3;
/// How often a new cluster is asked whether its brokers know each other.
const POLL: Duration = Duration::from_millis(20);

/// How to run it.
#[derive(Clone, Debug, Default)]
pub struct KafkaOptions {
    /// Lets the JVM compile hot code fully (C2). Right for benchmarks; else it starts quicker and costs less without.
    pub c2: bool,
    /// Clients must come over TLS and log in (PLAIN or SCRAM-SHA-512), and may do only what an ACL allows; `admin` may do all.
    pub secured: Option<Secured>,
    /// Further users that may log in by PLAIN, with their passwords, where clients must log in.
    pub users: Vec<(String, String)>,
    /// Further lines of `server.properties`; they win over ours.
    pub properties: Vec<(String, String)>,
    /// For clients; 0: a free one.
    pub port: u16,
    /// For data and log, kept; `None`: a temporary folder.
    pub dir: Option<PathBuf>,
}

/// Several brokers: how to run them.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// At least one. Topics get three copies, of which two must acknowledge, where there are three or more.
    pub brokers: usize,
    /// The ports on 127.0.0.1 that the brokers give out to clients as theirs, one a broker: those of fault proxies.
    /// Nobody needs to listen there for the start. [`Server::endpoint`] stays the broker's own address.
    pub advertised: Option<Vec<u16>>,
    /// For the brokers' folders `1`, `2`, ..., kept; `None`: temporary folders.
    pub dir: Option<PathBuf>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { brokers: 3, advertised: None, dir: None }
    }
}

/// Starts a broker and waits until it names itself as ready in an answer to Metadata.
///
/// # Errors
/// When Kafka or Java is not installed, or the broker does not answer in time; the error holds the end of its log.
pub fn start(options: KafkaOptions) -> Result<Server> {
    let folder = Folder::open(options.dir.as_deref())?;
    let cluster = format(&folder, 1, None)?;
    let node = Node { id: 1, port: options.port, advertised: None, controllers: vec![0], cluster };
    // So that a test need not wait for 9 s until a killed broker may register again, as it must by default. Of several
    // brokers, that wait belongs to what is tested.
    let quick = [("broker.session.timeout.ms", "3000"), ("broker.heartbeat.interval.ms", "500")];
    let quick = quick.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let demands = match &options.secured {
        Some(secured) => demands(secured, &options.users, folder.path())?,
        None => Vec::new(),
    };
    start_node(folder, node, options.c2, &[&quick[..], &demands, &options.properties].concat())
}

/// Lines of `server.properties` under which clients need TLS, a login and permissions. Those of the broker's own listener need none.
fn demands(secured: &Secured, users: &[(String, String)], folder: &Path) -> Result<Vec<(String, String)>> {
    // Kafka reads certificate and key from one file.
    let (certificate, key) = secured.place(folder)?;
    let read = |path: &Path| fs::read(path).map_err(StackError::system(format!("read {}", path.display())));
    let both = folder.join("server.pem");
    folder::write(&both, [read(&key)?, read(&certificate)?].concat())?;
    let admin = (ADMIN.to_owned(), secured.password.clone());
    let logins: String = [admin].iter().chain(users).map(|(user, password)| format!(" user_{user}=\"{password}\"")).collect();
    let module = "org.apache.kafka.common.security";
    let lines = [
        (LISTENER_PROTOCOLS, "CLIENT:SASL_SSL,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned()),
        ("sasl.enabled.mechanisms", "PLAIN,SCRAM-SHA-512".to_owned()),
        ("listener.name.client.plain.sasl.jaas.config", format!("{module}.plain.PlainLoginModule required{logins};")),
        ("listener.name.client.scram-sha-512.sasl.jaas.config", format!("{module}.scram.ScramLoginModule required;")),
        ("listener.name.client.ssl.keystore.type", "PEM".to_owned()),
        ("listener.name.client.ssl.keystore.location", both.display().to_string()),
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer".to_owned()),
        ("super.users", format!("User:{ADMIN};User:ANONYMOUS")),
    ];
    Ok(lines.map(|(name, value)| (name.to_owned(), value)).to_vec())
}

/// Where the brokers themselves reach this one: without encryption, login or limits, and never through a proxy.
///
/// # Errors
/// When its `server.properties` cannot be read.
pub fn inner_endpoint(server: &Server) -> Result<String> {
    let file = server.folder().join("server.properties");
    let text = fs::read_to_string(&file).map_err(StackError::system(format!("read {}", file.display())))?;
    let address = text.split("BROKER://").nth(1).and_then(|rest| rest.split([',', '\n']).next());
    Ok(address.unwrap_or_default().to_owned())
}

/// Runs one of Kafka's own command-line tools to its end and gives what it prints: `org.apache.kafka.tools.AclCommand` and its like.
///
/// # Errors
/// When Kafka or Java is not installed, or the tool fails; the error holds what it said.
pub fn tool(class: &str, args: &[String]) -> Result<String> {
    let native = native::folder()?;
    let mut command = spawn::bound(&native::java(), &[]);
    command.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
    command.arg(format!("{}/*", native.join("kafka").display())).arg(class).args(args);
    let output = spawn::complete(command, class)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts brokers side by side, numbered 1, 2, ... in this order, and waits until each knows all of them.
///
/// Each is a voter of the controllers' quorum: without a majority none becomes ready, so brokers that were all killed
/// must be restarted side by side. A killed broker is counted as gone, and let in again, after `broker.session.timeout.ms`
/// (9 s by default).
///
/// # Errors
/// As for [`start`], for each that failed; the others are ended.
pub fn start_cluster(options: ClusterOptions) -> Result<Vec<Server>> {
    let controllers: Vec<u16> = (0..options.brokers).map(|_| ports::free()).collect::<Result<_>>()?;
    let mut cluster: Option<String> = None;
    let mut nodes = Vec::new();
    for id in 1..=options.brokers {
        let folder = Folder::open(options.dir.as_ref().map(|dir| dir.join(id.to_string())).as_deref())?;
        let name = format(&folder, id, cluster.as_deref())?;
        cluster = Some(name.clone());
        let advertised = options.advertised.as_ref().and_then(|ports| ports.get(id - 1).copied());
        nodes.push((folder, Node { id, port: 0, advertised, controllers: controllers.clone(), cluster: name }));
    }
    let started = side_by_side(nodes.into_iter().map(|(folder, node)| || start_node(folder, node, false, &[])));
    let servers = StackError::all(started)?;
    for server in &servers {
        wait_for_brokers(server, options.brokers)?;
    }
    Ok(servers)
}

/// A broker learns of the others one by one after it is ready itself.
fn wait_for_brokers(server: &Server, wanted: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        let reason = match ask::kafka_cluster(server.port()) {
            Ok(found) if found.brokers.len() == wanted => return Ok(()),
            Ok(found) => format!("it knows brokers {:?}, not all {wanted}", found.brokers),
            Err(error) => error.to_string(),
        };
        if begin.elapsed() > START_DEADLINE {
            return Err(StackError::not_ready(server.name(), reason, server.log()));
        }
        thread::sleep(POLL);
    }
}

/// One broker and its place in the cluster.
struct Node {
    /// From 1.
    id: usize,
    /// For clients; 0: a free one.
    port: u16,
    /// What clients are told instead.
    advertised: Option<u16>,
    /// Those of all nodes, by id; 0: a free one, if there is only one node.
    controllers: Vec<u16>,
    cluster: String,
}

fn start_node(folder: Folder, node: Node, c2: bool, more: &[(String, String)]) -> Result<Server> {
    let is_secured = more.iter().any(|(name, _)| name == LISTENER_PROTOCOLS);
    let native = native::folder()?;
    let jars = native::files_ending(&native.join("kafka"), ".jar")?;
    Server::start("kafka", folder, &[node.port, 0, node.controllers[node.id - 1]], |folder, ports| {
        let properties = folder.join("server.properties");
        folder::write(&properties, server_properties(&node, &folder.join("data"), ports, more))?;
        let mut args: Vec<String> =
            ["-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"].map(str::to_owned).to_vec();
        if !c2 {
            args.push("-XX:TieredStopAtLevel=1".to_owned());
        }
        args.extend(native::archive_option(&native, "kafka.jsa"));
        args.extend(LOGGING.map(|(name, value)| format!("-Dorg.slf4j.simpleLogger.{name}={value}")));
        // Names without a path, in order: the archive is bound to the class path as compose/native/archives.sh spells it.
        args.extend(["-cp".to_owned(), jars.join(":"), "kafka.Kafka".to_owned(), properties.to_string_lossy().into_owned()]);
        // A broker may call itself ready before it notices that one of its ports is somebody else's, so both must be its own.
        // Where clients need TLS, only its own listener can be asked.
        let asked = if is_secured { vec![ports[1]] } else { vec![ports[1], ports[0]] };
        let (id, cluster) = (node.id as i32, node.cluster.clone());
        let launch = Launch::new(native::java(), args, folder.join("kafka.log"));
        let launch = Launch { cwd: Some(native.join("kafka")), ..launch };
        let probe = move |_: &Started<'_>| asked.iter().try_for_each(|&port| knows_itself(port, id, &cluster));
        Ok(Recipe::new(launch, format!("127.0.0.1:{}", ports[0]), probe))
    })
}

/// Whether the broker behind a port is this one, and ready.
fn knows_itself(port: u16, id: i32, cluster: &str) -> Result<(), String> {
    match ask::kafka_cluster(port) {
        Ok(found) if found.id != cluster => Err(format!("port {port} belongs to another Kafka")),
        Ok(found) if !found.brokers.contains(&id) => Err("the broker is not registered yet".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// The broker prints its whole configuration several times at start: left out, else it is all that a log's end shows.
const LOGGING: [(&str, &str); 4] = [
    ("showDateTime", "true"),
    ("dateTimeFormat", "HH:mm:ss.SSS"),
    ("showShortLogName", "true"),
    ("log.org.apache.kafka.common.config", "warn"),
];

/// Makes a node's data folder for this cluster (`None`: a new one), or keeps the one there is; gives the cluster's id.
///
/// The set-up script has run Kafka's own `StorageTool` once. A second JVM for each start would take as long as the
/// broker, and only the two ids differ.
fn format(folder: &Folder, node: usize, cluster: Option<&str>) -> Result<String> {
    format_data(&folder.path().join("data"), &native::folder()?.join("kafka-bootstrap.checkpoint"), node, cluster)
}

fn format_data(data: &Path, bootstrap: &Path, node: usize, cluster: Option<&str>) -> Result<String> {
    let meta = data.join("meta.properties");
    if let Ok(text) = fs::read_to_string(&meta) {
        let id = text.lines().find_map(|line| line.strip_prefix("cluster.id="));
        return id.map(str::to_owned).ok_or_else(|| {
            StackError::system(format!("read {}", meta.display()))(std::io::Error::other("it names no cluster.id"))
        });
    }
    folder::make(data)?;
    fs::copy(bootstrap, data.join("bootstrap.checkpoint"))
        .map_err(StackError::system(format!("copy {}", bootstrap.display())))?;
    let cluster = cluster.map_or_else(random_id, str::to_owned);
    // Written last: its presence says that the folder is complete.
    folder::write(&meta, format!("version=1\nnode.id={node}\ncluster.id={cluster}\ndirectory.id={}\n", random_id()))?;
    Ok(cluster)
}

/// 16 random bytes as Kafka writes its ids: URL-safe base64 without padding, and never a dash in front.
fn random_id() -> String {
    let mut bytes = [0; 16];
    rand::rng().fill_bytes(&mut bytes);
    // The first 100 ids are reserved, and 0xf8 in front would be the dash: both need other top bits.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    URL_SAFE_NO_PAD.encode(bytes)
}

/// `ports`: for clients, for brokers, for controllers.
fn server_properties(node: &Node, data: &Path, ports: &[u16], more: &[(String, String)]) -> String {
    let [port, broker, controller] = [ports[0], ports[1], ports[2]];
    let advertised = node.advertised.unwrap_or(port);
    let others = node.controllers.iter().enumerate().map(|(index, &other)| (index + 1, other));
    let voters: Vec<String> =
        others.map(|(id, other)| format!("{id}@127.0.0.1:{}", if id == node.id { controller } else { other })).collect();
    let copies = node.controllers.len().min(REPLICATION);
    // All but one: that one may fail.
    let in_sync = copies.saturating_sub(1).max(1);
    let settings = [
        ("node.id", node.id.to_string()),
        ("controller.quorum.voters", voters.join(",")),
        ("listeners", format!("CLIENT://127.0.0.1:{port},BROKER://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}")),
        ("advertised.listeners", format!("CLIENT://127.0.0.1:{advertised},BROKER://127.0.0.1:{broker}")),
        ("log.dirs", data.display().to_string()),
        ("default.replication.factor", copies.to_string()),
        ("min.insync.replicas", in_sync.to_string()),
        ("offsets.topic.replication.factor", copies.to_string()),
        ("transaction.state.log.replication.factor", copies.to_string()),
        ("transaction.state.log.min.isr", in_sync.to_string()),
        ("share.coordinator.state.topic.replication.factor", copies.to_string()),
        ("share.coordinator.state.topic.min.isr", in_sync.to_string()),
    ];
    let mut text: String = settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    text.push_str(SETTINGS);
    // Of two lines with one name, Java's properties keep the later.
    text.extend(more.iter().map(|(name, value)| format!("{name}={value}\n")));
    text
}

const SETTINGS: &str = "\
process.roles=broker,controller
controller.listener.names=CONTROLLER
inter.broker.listener.name=BROKER
listener.security.protocol.map=CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
unclean.leader.election.enable=false
offsets.topic.num.partitions=4
transaction.state.log.num.partitions=4
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
# So that tests need not wait long for a dead member or a dead transaction to be noticed.
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=100
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
# A third of the heap by default, for topics far larger than ours.
log.cleaner.dedupe.buffer.size=16777216
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_as_kafka_writes_them() {
        for _ in 0..1000 {
            let id = random_id();
            assert_eq!(id.len(), 22);
            assert!(!id.starts_with('-'));
            assert!("AQgw".contains(id.chars().last().unwrap()), "{id}: two bits are left for the last character");
        }
    }

    #[test]
    fn a_formatted_folder_keeps_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let bootstrap = folder.path().join("bootstrap");
        fs::write(&bootstrap, "x").unwrap();
        let data = folder.path().join("data");
        let first = format_data(&data, &bootstrap, 1, None).unwrap();
        assert_eq!(format_data(&data, &bootstrap, 1, None).unwrap(), first);
        let second = format_data(&folder.path().join("second"), &bootstrap, 2, Some(&first)).unwrap();
        assert_eq!(second, first);
    }

    #[test]
    fn further_properties_come_last() {
        let text = properties(1, None, &[("node.id".into(), "7".into())]);
        assert!(text.ends_with("\nnode.id=7\n"));
    }

    fn properties(brokers: usize, advertised: Option<u16>, more: &[(String, String)]) -> String {
        let controllers = (0..brokers as u16).map(|index| 31 + index).collect();
        let node = Node { id: 1, port: 0, advertised, controllers, cluster: "c".to_owned() };
        server_properties(&node, Path::new("/d"), &[11, 21, 31], more)
    }

    #[test]
    fn all_but_one_copy_must_acknowledge() {
        for (brokers, copies, in_sync) in [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)] {
            let text = properties(brokers, None, &[]);
            assert!(text.contains(&format!("\ndefault.replication.factor={copies}\nmin.insync.replicas={in_sync}\n")), "{text}");
        }
    }

    #[test]
    fn only_clients_are_sent_to_the_advertised_port() {
        let text = properties(3, Some(99), &[]);
        assert!(text.contains("\nadvertised.listeners=CLIENT://127.0.0.1:99,BROKER://127.0.0.1:21\n"), "{text}");
        assert!(text.contains("\ncontroller.quorum.voters=1@127.0.0.1:31,2@127.0.0.1:32,3@127.0.0.1:33\n"), "{text}");
    }
}
