//! Brings the model and the processes together: what happens out there goes into the model, deeds go out.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use solehold_api::{
    paths,
    placement::{PlacementSettings, PutPlacement},
    resources::{PutResource, ResourceBody},
};
use solehold_clock::wall_ms;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Interval, MissedTickBehavior, interval},
};

use super::{
    KIND, RESOURCES, RUNNERS,
    model::{Deed, DemoInput, DemoModel},
    storage::{self, StorageNews},
    world::DemoWorld,
};
use crate::{
    client::{Client, Method, Peer, ServerArgs},
    error::{CommandError, CommandResult, Doing},
    live::feed::{self, FeedNews, NEWS_MAX},
};

/// How often it is looked whether an agent has ended, and a view is drawn at least.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A runner that comes back gets its share soon: nobody wants to wait for a minute in a demo.
const SETTLE_MS: u64 = 2_000;

pub struct Play {
    pub model: DemoModel,
    world: DemoWorld,
    storage: Option<SocketAddr>,
    news: mpsc::Receiver<FeedNews>,
    writes: mpsc::Receiver<StorageNews>,
    senders: Option<(mpsc::Sender<FeedNews>, mpsc::Sender<StorageNews>)>,
    look: Interval,
    tasks: JoinSet<()>,
}

impl Play {
    /// Prepares a folder; nothing runs yet.
    pub fn open() -> CommandResult<Self> {
        let (to_news, news) = mpsc::channel(NEWS_MAX);
        let (to_writes, writes) = mpsc::channel(NEWS_MAX);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            model: DemoModel::new(String::new()),
            world: DemoWorld::open()?,
            storage: None,
            news,
            writes,
            senders: Some((to_news, to_writes)),
            look,
            tasks: JoinSet::new(),
        })
    }

    /// Starts the server, the storage and the first agents.
    pub async fn start(&mut self) -> CommandResult {
        let Some((to_news, to_writes)) = self.senders.take() else { return Ok(()) };
        let address = self.world.start_server().await?;
        self.model.dashboard = format!("http://{address}/");
        let server = ServerArgs {
            server: Some(address.to_string()),
            api_key: None,
            tenant: None,
            ca_cert: None,
            timeout: None,
            peer: Peer::default(),
        };
        let client = Arc::new(Client::new(&server)?);
        declare(&client).await.doing("declare the counters")?;
        self.tasks.spawn(feed::follow(client, false, to_news));
        self.storage = Some(storage::serve(&server, to_writes, &mut self.tasks).await?);
        for _ in 0..RUNNERS {
            self.act(Deed::Add).await?;
        }
        Ok(())
    }

    /// Waits for something to happen, but not for long.
    pub async fn step(&mut self) -> CommandResult {
        let gone = || CommandError::broken("the demo has lost its own parts");
        let input = tokio::select! {
            news = self.news.recv() => DemoInput::News(news.ok_or_else(gone)?),
            write = self.writes.recv() => DemoInput::Stored(write.ok_or_else(gone)?),
            _ = self.look.tick() => {
                for runner in self.world.ended() {
                    self.model.update(DemoInput::Ended(runner), wall_ms());
                }
                return Ok(());
            }
        };
        self.model.update(input, wall_ms());
        // What has come meanwhile is taken with it: a view is drawn once for all of it.
        while let Ok(news) = self.news.try_recv() {
            self.model.update(DemoInput::News(news), wall_ms());
        }
        while let Ok(write) = self.writes.try_recv() {
            self.model.update(DemoInput::Stored(write), wall_ms());
        }
        Ok(())
    }

    pub async fn act(&mut self, deed: Deed) -> CommandResult {
        match &deed {
            Deed::Add => {
                let storage = self.storage.ok_or_else(|| CommandError::broken("the demo has not started"))?;
                let runner = self.world.add_runner(storage)?;
                self.model.update(DemoInput::Started(runner), wall_ms());
            }
            // Those that take a while begin when they are asked for.
            Deed::Kill(runner) => {
                self.model.update(DemoInput::Done(deed.clone()), wall_ms());
                self.world.kill(runner).await;
                return Ok(());
            }
            Deed::Pause(runner) => self.world.pause(runner),
            Deed::Resume(runner) => self.world.resume(runner).await,
            Deed::Drain(runner) => self.world.drain(runner),
            Deed::Cut => self.world.cut().await,
            Deed::Restore => drop(self.world.start_server().await?),
            Deed::Quit => {}
        }
        self.model.update(DemoInput::Done(deed), wall_ms());
        Ok(())
    }

    /// The last lines of every log.
    pub fn logs(&self) -> String {
        self.world.logs()
    }

    /// Ends everything.
    pub async fn close(mut self) {
        self.tasks.shutdown().await;
        self.world.close().await;
    }
}

async fn declare(client: &Client) -> CommandResult {
    let settings = PutPlacement { settle_ms: Some(Some(SETTLE_MS)), ..PutPlacement::default() };
    client.send::<PlacementSettings>(Method::PUT, &paths::placement(), &settings).await?;
    for number in 1..=RESOURCES {
        let path = paths::resource(KIND, &format!("{number:02}"));
        client.send::<ResourceBody>(Method::PUT, &path, &PutResource::default()).await?;
    }
    Ok(())
}
