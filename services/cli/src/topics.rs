//! `topics apply|check`: makes the topics and registers the schemas. Nothing else does.

use std::time::Duration;

use clap::Subcommand;
use events::{Codec, EVENT_SCHEMA, REQUEST_SCHEMA, Registry, RegistryError, Topics};
use infra::{
    config::Connections,
    kafka::{LogError, TopicPlan, apply_topics, plan_topics},
};

use crate::{DIFFERENT, OK, connect, output};

/// Tries of a registry that does not answer within its client's 2 s.
const REGISTRY_TRIES: u32 = 10;

/// What is said where nothing is to be done.
const FIT: &str = "topics and schemas are as they should be already";

/// Pause between two of them.
const REGISTRY_PAUSE: Duration = Duration::from_millis(500);

/// Make and check the topics and schemas
#[derive(Subcommand)]
pub(crate) enum Verb {
    Apply(ApplyArgs),
    Check(CheckArgs),
}

/// Make missing topics, grow them to --partitions, register the schemas
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster topics apply\n  doorbuster topics apply --partitions 12 --apply")]
pub(crate) struct ApplyArgs {
    /// Partitions of the topics: they grow to it, and the vouchers stay where they are. Without: as many as there are, else 12
    #[arg(long)]
    partitions: Option<i32>,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
}

/// Check that topics and schemas are as the services need them
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster topics check && echo fit")]
pub(crate) struct CheckArgs {}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Apply(args) => apply(args).await,
        Verb::Check(_) => check().await,
    }
}

/// The subjects and what is registered under them.
fn schemas(connections: &Connections) -> [(String, &'static str); 2] {
    let topics = &connections.topics;
    [(Topics::subject(&topics.requests), REQUEST_SCHEMA), (Topics::subject(&topics.events), EVENT_SCHEMA)]
}

fn steps(plan: &TopicPlan) -> Vec<String> {
    plan.steps.iter().map(ToString::to_string).collect()
}

/// Registers a schema that is not registered yet, and gives its id. A registry that has only just started is slow at first, and both calls
/// may be repeated.
async fn register(registry: &Registry, subject: &str, schema: &str) -> Result<Option<u32>, RegistryError> {
    let once = async || match registry.id_of(subject, schema).await? {
        Some(_) => Ok(None),
        None => registry.register(subject, schema).await.map(Some),
    };
    for _ in 1..REGISTRY_TRIES {
        match once().await {
            Err(RegistryError::Unavailable { .. }) => tokio::time::sleep(REGISTRY_PAUSE).await,
            answered => return answered,
        }
    }
    once().await
}

/// Makes topics and registers schemas; gives what it did.
pub(crate) async fn bring_about(connections: &Connections, partitions: Option<i32>) -> anyhow::Result<Vec<String>> {
    let for_kafka = connections.clone();
    let mut done = tokio::task::spawn_blocking(move || {
        let plan = plan_topics(&for_kafka, partitions)?;
        apply_topics(&for_kafka, &plan)?;
        Ok::<_, LogError>(steps(&plan))
    })
    .await??;
    let registry = connections.schema_registry()?;
    for (subject, schema) in schemas(connections) {
        if let Some(id) = register(&registry, &subject, schema).await? {
            done.push(format!("register the schema of {subject} (id {id})"));
        }
    }
    Ok(done)
}

async fn apply(args: ApplyArgs) -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    if args.apply {
        let done = bring_about(&connections, args.partitions).await?;
        done.iter().for_each(|step| outln!("did: {step}"));
        if done.is_empty() {
            output::line(FIT);
        }
        return Ok(OK);
    }
    let for_kafka = connections.clone();
    let plan = tokio::task::spawn_blocking(move || plan_topics(&for_kafka, args.partitions)).await??;
    let mut plan = steps(&plan);
    let registry = connections.schema_registry()?;
    for (subject, schema) in schemas(&connections) {
        if registry.id_of(&subject, schema).await?.is_none() {
            plan.push(format!("register the schema of {subject}"));
        }
    }
    output::plan(&plan, FIT);
    Ok(OK)
}

async fn check() -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    let for_kafka = connections.clone();
    let topics = tokio::task::spawn_blocking(move || infra::kafka::check_topics(&for_kafka)).await?;
    let registry = connections.schema_registry()?;
    let codec = Codec::connect(&registry, &connections.topics).await;
    let mut code = OK;
    match topics {
        Ok(partitions) => output::line(&output::green(&format!("the topics are fit, with {partitions} partitions"))),
        Err(unfit @ LogError::Topic { .. }) => {
            output::line(&output::red(&unfit.to_string()));
            code = DIFFERENT;
        }
        Err(other) => return Err(other.into()),
    }
    match codec {
        Ok(_) => output::line(&output::green("the schemas are registered")),
        Err(events::ConnectError::Registry(error)) => return Err(error.into()),
        Err(missing) => {
            output::line(&output::red(&missing.to_string()));
            code = DIFFERENT;
        }
    }
    Ok(code)
}
