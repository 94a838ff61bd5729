//! Two replicas over one store, which relay in turns.

use solehold_core::{
    command::Command,
    key::{Name, ResourceKey},
    lease::Declaration,
};
use solehold_engine::{Engine, EngineOptions, clock::BootClock, resident};
use tokio::sync::mpsc;

use super::{
    super::{Destination, DestinationConfig, RelayConfig, StartAt, WebhookConfig, config::DestinationUrl},
    *,
};

const TURN_MAX: Duration = Duration::from_secs(60);

/// Hands what is published to the test.
struct Recorded(mpsc::Sender<Option<Name>>);

#[async_trait::async_trait]
impl Destination for Recorded {
    async fn publish(&self, message: &Message) -> Result<(), Failure> {
        self.0.send(message.site.clone()).await.map_err(|_| Failure::Away("the test is over".to_owned()))
    }

    async fn check(&self) -> Result<String, Failure> {
        Ok(String::new())
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn relay(engine: &Engine, published: &mpsc::Sender<Option<Name>>) -> Arc<Relay> {
    let url = DestinationUrl::new("http://127.0.0.1:1", &["http"]).expect("a URL");
    let webhook = WebhookConfig { url, secret: "-".into(), timeout: WebhookConfig::TIMEOUT };
    let config = RelayConfig {
        name: name("pipeline"),
        to: DestinationConfig::Webhook(webhook),
        start_at: StartAt::Oldest,
        tenant: None,
        kind: Some(name("camera")),
        renewals: false,
        when_refused: WhenRefused::default(),
    };
    Arc::new(Relay {
        key: ResourceKey::new(name("solehold"), name("relay"), config.name.clone()),
        config,
        engine: engine.clone(),
        destination: Box::new(Recorded(published.clone())),
        metrics: Arc::new(crate::metrics::Metrics::new("test")),
    })
}

/// Commits a command, and lets this replica relay until its event was published; returns the site of that event.
async fn relayed(
    relay: &Arc<Relay>,
    command: Command,
    published: &mut mpsc::Receiver<Option<Name>>,
) -> Option<Name> {
    relay.engine.submit(command).await.expect("an answer").expect("done");
    let (stop, stopping) = watch::channel(false);
    let competing = tokio::spawn(compete(relay.clone(), "node".to_owned(), stopping));
    let site = tokio::time::timeout(TURN_MAX, published.recv()).await.expect("published").expect("a message");
    stop.send_replace(true);
    competing.await.expect("stopped");
    site
}

#[tokio::test]
async fn a_replica_that_relays_again_knows_what_was_declared_while_another_one_did() {
    let engine =
        Engine::start(resident::memory(BootClock).expect("memory"), EngineOptions::default(), Arc::new(()));
    let (sender, mut published) = mpsc::channel(8);
    let first = relay(&engine, &sender);
    let second = relay(&engine, &sender);
    let key = ResourceKey::new(name("acme"), name("camera"), name("cam-1"));
    let declare = |site| {
        let declaration = Declaration { site: Some(name(site)), ..Declaration::default() };
        Command::Declare { key: key.clone(), declaration, only_new: false }
    };
    let note = || Command::NoteConfig { key: key.clone(), details: Default::default() };

    assert_eq!(relayed(&first, declare("north"), &mut published).await, Some(name("north")));
    assert_eq!(relayed(&second, declare("south"), &mut published).await, Some(name("south")));
    assert_eq!(relayed(&first, note(), &mut published).await, Some(name("south")));
    engine.stop().await;
}
