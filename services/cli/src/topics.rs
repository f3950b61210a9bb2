//! `topics apply|check`: makes the topics and registers the schemas. Nothing else does.

use std::time::Duration;

use clap::Subcommand;
use events::{Codec, ConnectError, EVENT_SCHEMA, REQUEST_SCHEMA, Registry, RegistryError, Topics};
use infra::{
    config::Connections,
    kafka::{LogError, apply_topics, plan_topics},
};

use crate::{DIFFERENT, OK, connect, output};

/// Tries of a registry that does not answer within its client's 2 s.
const REGISTRY_TRIES: u32 = 10;

/// Pause between two of them.
const REGISTRY_PAUSE: Duration = Duration::from_millis(500);

/// Make and check the topics and schemas
#[derive(Subcommand)]
pub(crate) enum Verb {
    Apply(ApplyArgs),
    /// Check that topics and schemas are as the services need them
    #[command(after_help = "Examples:\n  doorbuster topics check && echo fit")]
    Check,
}

/// Make missing topics, grow them to --partitions, register the schemas
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  doorbuster topics apply\n  doorbuster topics apply --partitions 12 --apply")]
pub(crate) struct ApplyArgs {
    /// Partitions of the topics: they grow to it, and the vouchers stay where they are. Without: as many as there are, else 12
    #[arg(long, value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Act, instead of only showing the plan
    #[arg(long)]
    apply: bool,
}

pub(crate) async fn execute(verb: Verb) -> anyhow::Result<u8> {
    match verb {
        Verb::Apply(args) => apply(args).await,
        Verb::Check => check().await,
    }
}

/// Makes topics and registers schemas, or, without `apply`, only looks what that would be; gives the steps.
pub(crate) async fn bring_about(connections: &Connections, partitions: Option<i32>, apply: bool) -> anyhow::Result<Vec<String>> {
    let plan = connect::kafka(connections, move |connections| {
        let plan = plan_topics(connections, partitions)?;
        if apply {
            apply_topics(connections, &plan)?;
        }
        Ok(plan)
    });
    let mut steps: Vec<_> = plan.await?.steps.iter().map(ToString::to_string).collect();
    let (registry, topics) = (connections.schema_registry()?, &connections.topics);
    for (topic, schema) in [(&topics.requests, REQUEST_SCHEMA), (&topics.events, EVENT_SCHEMA)] {
        steps.extend(registered(&registry, &Topics::subject(topic), schema, apply).await?);
    }
    Ok(steps)
}

/// The step that registers a schema, if it is not registered yet. A registry that has only just started is slow at first, and all calls may
/// be repeated.
async fn registered(registry: &Registry, subject: &str, schema: &str, apply: bool) -> Result<Option<String>, RegistryError> {
    let step = format!("register the schema of {subject}");
    let once = async || match registry.id_of(subject, schema).await? {
        Some(_) => Ok(None),
        None if !apply => Ok(Some(step.clone())),
        None => registry.register(subject, schema).await.map(|id| Some(format!("{step} (id {id})"))),
    };
    for _ in 1..REGISTRY_TRIES {
        match once().await {
            Err(RegistryError::Unavailable { .. }) => tokio::time::sleep(REGISTRY_PAUSE).await,
            answered => return answered,
        }
    }
    once().await
}

async fn apply(args: ApplyArgs) -> anyhow::Result<u8> {
    let steps = bring_about(&connect::connections()?, args.partitions, args.apply).await?;
    output::steps(args.apply, &steps, "topics and schemas are as they should be already");
    Ok(OK)
}

async fn check() -> anyhow::Result<u8> {
    let connections = connect::connections()?;
    let topics = match connect::partitions(&connections).await {
        Ok(partitions) => Ok(format!("the topics are fit, with {partitions} partitions")),
        Err(error) if matches!(error.downcast_ref(), Some(LogError::Topic { .. })) => Err(error.to_string()),
        Err(error) => return Err(error),
    };
    let schemas = match Codec::connect(&connections.schema_registry()?, &connections.topics).await {
        Ok(_) => Ok("the schemas are registered".to_owned()),
        Err(ConnectError::Registry(error)) => return Err(error.into()),
        Err(missing) => Err(missing.to_string()),
    };
    let found = [topics, schemas];
    for one in &found {
        one.as_ref().map_or_else(|unfit| output::line(&output::red(unfit)), |fit| output::line(&output::green(fit)));
    }
    Ok(if found.iter().all(Result::is_ok) { OK } else { DIFFERENT })
}
