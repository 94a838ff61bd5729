//! Which scenes this tracker follows: free ones up to its capacity, those of a tracker that ends, and one of the
//! busiest tracker's at a time while that has two more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;
use solehold_client::{
    Authority, Contact, Http, HttpConfig, Metrics, OpenError, Session, SessionConfig, clock::Backoff,
};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    scene::{self, Ended},
    settings::Settings,
    wire::Wire,
};

/// How long a hand-over may take.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(3);
/// Between attempts to reach a server: longer after each failure.
const AGAIN: Backoff = Backoff { first: Duration::from_millis(200), cap: Duration::from_secs(5) };

/// A scene as the server lists it.
#[derive(Debug, Clone, Deserialize)]
struct Scene {
    scene_id: String,
    holder_id: Option<String>,
}

/// A tracker among others.
struct Fleet {
    settings: Settings,
    authority: Arc<Http>,
    session: Session,
    wire: Wire,
    http: reqwest::Client,
    base: String,
    following: JoinSet<(String, Ended)>,
    mine: BTreeSet<String>,
    stop: watch::Sender<bool>,
}

/// Runs a tracker until `ending` comes; then its scenes are handed over, or released.
pub async fn run(settings: Settings, ending: impl Future<Output = ()>) -> Result<()> {
    let mut ending = std::pin::pin!(ending);
    let wire = Wire::new(&settings.broker, &settings.id)?;
    let authority = Arc::new(Http::new(HttpConfig::new([settings.server.clone()]))?);
    let session = tokio::select! {
        session = open(&settings, authority.clone()) => session?,
        () = &mut ending => return Ok(()),
    };
    println!("tracker {} is registered", settings.id);
    tokio::spawn(tell_contact(session.contact()));
    let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
    let first = settings.server.split(',').next().unwrap_or_default().to_owned();
    let base = if first.contains("://") { first } else { format!("http://{first}") };
    let (following, mine, stop) = (JoinSet::new(), BTreeSet::new(), watch::Sender::new(false));
    let mut fleet = Fleet { settings, authority, session, wire, http, base, following, mine, stop };
    loop {
        tokio::select! {
            () = fleet.turn() => {}
            () = &mut ending => break,
        }
        fleet.reap();
    }
    fleet.end().await;
    Ok(())
}

/// Opens a session; a server that is away is waited for, longer after each failure.
async fn open(settings: &Settings, authority: Arc<Http>) -> Result<Session> {
    let config = SessionConfig {
        ttl: settings.ttl,
        every: Some(settings.renew_every),
        policy: settings.policy,
        metrics: metrics(false),
        open_timeout: Duration::ZERO,
        ..SessionConfig::new(&settings.id)
    };
    for failures in 1.. {
        match Session::open(authority.clone(), config.clone()).await {
            Ok(session) => return Ok(session),
            Err(OpenError::Authority(error)) => {
                let pause = AGAIN.wait(failures, 0.5);
                println!("no server yet, attempt {failures}: again in {} ms", pause.as_millis());
                tracing::info!(%error, "no server yet");
                tokio::time::sleep(pause).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("it tries for ever")
}

/// Says when the server does not answer, and when it does again.
async fn tell_contact(mut contact: watch::Receiver<Contact>) {
    while contact.changed().await.is_ok() {
        match &*contact.borrow_and_update() {
            Contact::Missing(_) => println!("the server does not answer"),
            Contact::Kept => println!("the server answers"),
        }
    }
}

/// What the others see of this tracker.
fn metrics(is_draining: bool) -> Metrics {
    Metrics::from_iter([("role".to_owned(), json!("tracker")), ("draining".to_owned(), json!(is_draining))])
}

impl Fleet {
    /// One look at the scenes. A server that is away is nothing to say: the session knows it, and the guards.
    async fn turn(&mut self) {
        if let Err(error) = self.look().await {
            tracing::debug!(%error, "no scenes can be taken now");
        }
        let ended = tokio::time::timeout(self.settings.look_every, self.following.join_next());
        match ended.await {
            Ok(Some(Ok((scene, ended)))) => self.has_ended(&scene, ended),
            Ok(None) => tokio::time::sleep(self.settings.look_every).await,
            Ok(Some(Err(_))) | Err(_) => {}
        }
    }

    async fn look(&mut self) -> Result<()> {
        let url = format!("{}/api/v1/scenes", self.base);
        let scenes: Vec<Scene> = self.http.get(url).send().await?.error_for_status()?.json().await?;
        let nodes = self.authority.nodes().await?;
        let trackers: BTreeMap<&str, bool> = nodes
            .iter()
            .filter(|node| node.metrics.get("role") == Some(&json!("tracker")))
            .map(|node| (node.node_id.as_str(), node.metrics.get("draining") == Some(&json!(true))))
            .collect();
        for scene in &scenes {
            if self.mine.len() >= self.settings.capacity || self.mine.contains(&scene.scene_id) {
                continue;
            }
            match &scene.holder_id {
                None => self.acquire(&scene.scene_id).await,
                Some(holder) if trackers.get(holder.as_str()) == Some(&true) => {
                    self.take_over(&scene.scene_id).await
                }
                Some(_) => {}
            }
        }
        if let Some(scene) = self.one_of_the_busiest(&scenes, &trackers) {
            self.take_over(&scene).await;
        }
        Ok(())
    }

    /// A scene of the tracker that has most, if that has two more than this one.
    fn one_of_the_busiest(&self, scenes: &[Scene], trackers: &BTreeMap<&str, bool>) -> Option<String> {
        let mut held: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for scene in scenes {
            let holder = scene.holder_id.as_deref().filter(|holder| trackers.contains_key(holder))?;
            held.entry(holder).or_default().push(&scene.scene_id);
        }
        let (_, most) = held.into_iter().max_by_key(|(_, scenes)| scenes.len())?;
        let has_room = self.mine.len() < self.settings.capacity;
        (has_room && most.len() >= self.mine.len() + 2).then(|| most[0].to_owned())
    }

    async fn acquire(&mut self, scene: &str) {
        match self.session.try_acquire("scene", scene).await {
            Ok(guard) => self.begin(scene, guard),
            Err(error) => tracing::debug!(scene, %error, "was not acquired"),
        }
    }

    /// Its present tracker goes on until this one has it: there is no gap.
    async fn take_over(&mut self, scene: &str) {
        match self.session.take_over("scene", scene, HAND_OVER_WITHIN).await {
            Ok(Some(guard)) => self.begin(scene, guard),
            Ok(None) => tracing::debug!(scene, "was not handed over in time"),
            Err(error) => tracing::debug!(scene, %error, "was not handed over"),
        }
    }

    fn begin(&mut self, scene: &str, guard: solehold_client::Guard) {
        self.mine.insert(scene.to_owned());
        let (settings, wire, stop) = (self.settings.clone(), self.wire.clone(), self.stop.subscribe());
        let scene = scene.to_owned();
        self.following.spawn(async move {
            let ended = scene::follow(&settings, &wire, guard, stop).await;
            (scene, ended)
        });
    }

    fn has_ended(&mut self, scene: &str, ended: Ended) {
        self.mine.remove(scene);
        println!("scene {scene} has ended: {ended:?}");
    }

    fn reap(&mut self) {
        while let Some(Ok((scene, ended))) = self.following.try_join_next() {
            self.has_ended(&scene, ended);
        }
    }

    /// Lets others take its scenes over for a while, if there are others, and releases what is left.
    async fn end(mut self) {
        self.session.set_metrics(metrics(true));
        let others = self.authority.nodes().await.unwrap_or_default();
        let is_other = |id: &str| id != self.settings.id;
        let has_others = others.iter().any(|node| {
            let is = |name: &str, value| node.metrics.get(name) == Some(&value);
            is_other(&node.node_id) && is("role", json!("tracker")) && is("draining", json!(false))
        });
        if has_others {
            let drained = async {
                while let Some(Ok((scene, ended))) = self.following.join_next().await {
                    println!("scene {scene} has ended: {ended:?}");
                }
            };
            let _ = tokio::time::timeout(self.settings.drain, drained).await;
        }
        self.stop.send_replace(true);
        while let Some(Ok((scene, ended))) = self.following.join_next().await {
            println!("scene {scene} has ended: {ended:?}");
        }
        self.session.close().await;
        println!("tracker {} stopped", self.settings.id);
    }
}
