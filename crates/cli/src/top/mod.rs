//! `solehold top`: who holds what, the runners and the last events, as they change.
//!
//! ```text
//!   feed (watch) ─┐
//!   runners, read ├─> model (pure) ──> view (ratatui), or plain text where there is no terminal
//!   every second  │     |
//!   keys ─────────┘     └─> wishes: quit, read the story of a resource or a runner
//! ```

mod model;
mod plain;
mod rows;
mod view;

use std::{
    io::{IsTerminal, stdin, stdout},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use solehold_api::{
    paths,
    runners::{Runner, RunnerList},
};
use solehold_clock::wall_ms;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use self::model::{Sort, Subject, Top, TopInput, TopTab, Wish};
use crate::{
    client::{Client, ServerArgs},
    commands::{ending_signals, explain, runner},
    error::{CommandError, CommandResult, Doing},
    live::{
        feed::{self, FeedNews, NEWS_MAX},
        screen::{Press, Screen},
    },
    output,
};

/// How often runners, and the story that is open, are read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often the screen is drawn at least, for what counts down.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Events in the story of a resource.
const STORY_EVENTS: usize = 50;
/// Events of the past that are read at the start.
const PAST_EVENTS: u64 = 100;

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Tab to begin with
    #[arg(long, value_enum, default_value_t = TopTab::Resources)]
    tab: TopTab,
    /// Show only lines that have this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Name)]
    sort: Sort,
}

pub async fn run(args: TopArgs, server: &ServerArgs) -> CommandResult {
    let client = Arc::new(Client::new(server)?);
    let (sender, mut news) = mpsc::channel(NEWS_MAX);
    let mut tasks = JoinSet::new();
    tasks.spawn(feed::follow(client.clone(), true, sender));
    let mut top = Top::new(client.base().to_owned(), args.tab, args.sort, args.filter);
    begin(&mut top, &client, &mut news).await.doing("show what the server does")?;
    if stdout().is_terminal() && stdin().is_terminal() {
        show(top, &client, news).await
    } else {
        output::print(&plain::page(&top, wall_ms()))
    }
}

/// Waits for the first whole snapshot, and reads the runners and the last events.
async fn begin(top: &mut Top, client: &Client, news: &mut mpsc::Receiver<FeedNews>) -> CommandResult {
    while top.board().cursor().is_none() {
        match news.recv().await {
            Some(FeedNews::Refused(failure)) => return Err(failure),
            // As any command that asks a server that is not there.
            Some(FeedNews::Lost(_)) => drop(runners(client).await?),
            Some(news) => drop(top.update(TopInput::News(news), wall_ms())),
            None => return Err(CommandError::broken("the watch has ended")),
        }
    }
    if let Some(cursor) = top.board().cursor() {
        top.remember(feed::past(client, cursor, PAST_EVENTS).await?);
    }
    top.update(TopInput::Runners(Ok(runners(client).await?)), wall_ms());
    Ok(())
}

async fn runners(client: &Client) -> CommandResult<Vec<Runner>> {
    client.list::<RunnerList>(&paths::runners(), &[], None).await
}

async fn story(subject: &Subject, client: &Client) -> CommandResult<String> {
    match subject {
        Subject::Of(resource) => explain::text(resource, STORY_EVENTS, client).await,
        Subject::Runner(name) => runner::text(name, client).await,
    }
}

async fn show(mut top: Top, client: &Arc<Client>, mut news: mpsc::Receiver<FeedNews>) -> CommandResult {
    let mut signals = ending_signals()?;
    let mut screen = Screen::open()?;
    let (answers, mut answered) = mpsc::channel(NEWS_MAX);
    let mut draw = interval(DRAW_EVERY);
    let mut read = interval(READ_EVERY);
    for every in [&mut draw, &mut read] {
        every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let mut reads = JoinSet::new();
    loop {
        let input = tokio::select! {
            press = screen.press() => TopInput::Key(press),
            Some(news) = news.recv() => TopInput::News(news),
            Some(answer) = answered.recv() => answer,
            _ = read.tick() => TopInput::Tick,
            _ = draw.tick() => {
                screen.draw(|frame| view::draw(frame, &mut top, wall_ms()))?;
                continue;
            }
            () = signals.next() => TopInput::Key(Press::Interrupt),
        };
        let is_key = matches!(input, TopInput::Key(_));
        let is_tick = matches!(input, TopInput::Tick);
        match top.update(input, wall_ms()) {
            Some(Wish::Quit) => return Ok(()),
            Some(Wish::Fail(failure)) => return Err(*failure),
            None => {}
        }
        // One round of reads at a time: a server that does not answer is not asked by ever more.
        let is_asked = is_tick || (is_key && top.is_story_awaited());
        while reads.try_join_next().is_some() {}
        if is_asked && reads.is_empty() {
            let client = client.clone();
            let answers = answers.clone();
            let subject = top.subject().cloned();
            reads.spawn(async move {
                if let Some(subject) = subject {
                    let told = story(&subject, &client).await.map_err(|failure| failure.message);
                    let _ = answers.send(TopInput::Story(subject, told)).await;
                }
                let told = runners(&client).await.map_err(|failure| failure.message);
                let _ = answers.send(TopInput::Runners(told)).await;
            });
        }
        if is_key {
            screen.draw(|frame| view::draw(frame, &mut top, wall_ms()))?;
        }
    }
}
