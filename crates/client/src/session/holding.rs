//! A lease that a guard stands for, and how long it is trusted.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use solehold_clock::BootTime;
use solehold_core::time::Token;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    authority::{Attributes, GrantedLease, HandOver, HeldLease, ResourceName, StateDocument},
    renewer::{Lost, Renewer},
};

/// How long one incarnation of the session is trusted, as its guards look at it: in nanoseconds since boot, read far
/// more often than written.
#[derive(Debug, Default)]
pub(crate) struct Window {
    trusted_until: AtomicU64,
    stop_at: AtomicU64,
}

impl Window {
    /// Lets guards see the renewer's times.
    pub fn show(&self, renewer: &Renewer) {
        self.trusted_until.store(renewer.trusted_until().as_nanos(), Ordering::SeqCst);
        self.stop_at.store(renewer.stop_at().as_nanos(), Ordering::SeqCst);
    }

    pub fn trusted_until(&self) -> BootTime {
        BootTime::from_nanos(self.trusted_until.load(Ordering::SeqCst))
    }

    pub fn stop_at(&self) -> BootTime {
        BootTime::from_nanos(self.stop_at.load(Ordering::SeqCst))
    }

    /// The same times, which no renewal moves any more.
    fn frozen(&self) -> Self {
        let copy = |time: &AtomicU64| AtomicU64::new(time.load(Ordering::SeqCst));
        Self { trusted_until: copy(&self.trusted_until), stop_at: copy(&self.stop_at) }
    }
}

#[derive(Debug)]
pub(crate) struct Holding {
    pub resource: ResourceName,
    /// What is kept with the lease, also when it is won back.
    pub attributes: Attributes,
    /// The grant, and the window of the session that keeps it: a guard whose lease is being reacquired is not trusted
    /// by the next session before it was.
    held: Mutex<(HeldLease, Arc<Window>)>,
    /// The same lease under another token, which nobody works under: it goes with the guard.
    reissued: OnceLock<HeldLease>,
    /// The hand-over document as far as this holder knows it, and the last sequence number under its token.
    pub state: Mutex<(Option<StateDocument>, u64)>,
    pub cancel: CancellationToken,
    /// The next holder asks for it, until this time.
    hand_over: watch::Sender<Option<(HandOver, BootTime)>>,
    /// The present token, for those who wait for another one.
    tokens: watch::Sender<Token>,
    lost: OnceLock<Lost>,
    /// Its guard is gone, or about to be: nothing more is to be held for it.
    is_gone: AtomicBool,
}

impl Holding {
    pub fn new(granted: GrantedLease, attributes: Attributes, window: Arc<Window>) -> Self {
        let resource = granted.held.resource.clone();
        let holding = Self {
            resource,
            attributes,
            held: Mutex::new((granted.held.clone(), window.clone())),
            reissued: OnceLock::new(),
            state: Mutex::default(),
            cancel: CancellationToken::new(),
            hand_over: watch::Sender::new(None),
            tokens: watch::Sender::new(granted.held.token),
            lost: OnceLock::new(),
            is_gone: AtomicBool::new(false),
        };
        holding.renewed_as(granted, window);
        holding
    }

    pub fn held(&self) -> HeldLease {
        self.held.lock().0.clone()
    }

    pub fn token(&self) -> Token {
        self.held.lock().0.token
    }

    /// Until when nobody else holds it, unless it is renewed before.
    pub fn trusted_until(&self) -> BootTime {
        self.held.lock().1.trusted_until()
    }

    /// The work stops then.
    pub fn stop_at(&self) -> BootTime {
        self.held.lock().1.stop_at()
    }

    /// It is held under this grant from now on, for as long as that window lasts.
    pub fn renewed_as(&self, granted: GrantedLease, window: Arc<Window>) {
        let token = granted.held.token;
        *self.held.lock() = (granted.held, window);
        let sequence = granted.state.as_ref().filter(|s| s.token == token).map_or(0, |s| s.sequence);
        *self.state.lock() = (granted.state, sequence);
        self.tokens.send_if_modified(|known| std::mem::replace(known, token) != token);
    }

    /// Its next holder asks for it, until a time that is told with it, or does not any more.
    pub fn ask(&self, hand_over: Option<(HandOver, BootTime)>) {
        self.hand_over.send_if_modified(|asked| {
            let to = |asked: &Option<(HandOver, BootTime)>| asked.as_ref().map(|(asked, _)| asked.to.clone());
            let is_new = to(asked) != to(&hand_over);
            *asked = hand_over;
            is_new
        });
    }

    pub fn hand_over(&self) -> watch::Receiver<Option<(HandOver, BootTime)>> {
        self.hand_over.subscribe()
    }

    pub fn tokens(&self) -> watch::Receiver<Token> {
        self.tokens.subscribe()
    }

    /// It is lost, for the reason that is told first. Its deadline stays as it was: the next renewal of the session is
    /// not for this lease.
    pub fn lose(&self, lost: Lost) {
        if self.lost.set(lost).is_ok() {
            let mut held = self.held.lock();
            held.1 = Arc::new(held.1.frozen());
        }
        self.cancel.cancel();
    }

    pub fn lost(&self) -> Option<Lost> {
        self.lost.get().cloned()
    }

    /// The store gave the lease another token: the guard's is no longer good, and nobody works under the new one.
    pub fn reissue(&self, held: HeldLease) {
        let _ = self.reissued.set(held);
    }

    /// The lease under another token, if it has one.
    pub fn reissued(&self) -> Option<&HeldLease> {
        self.reissued.get()
    }

    pub fn go(&self) {
        self.is_gone.store(true, Ordering::SeqCst);
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::SeqCst)
    }
}
