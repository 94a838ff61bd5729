//! What is wrong with the broken variants, and what is right with the five designs.

use crate::{
    invariants::{
        EFFECT_ONCE, IN_ORDER, Invariant, LATER_UNTOUCHED, ONE_TRUSTS, TOKENS_GROW, TRUST_IS_BACKED,
    },
    scope::{Scope, Tenure},
    variant::Variant,
};

/// A statement about a variant in a scope, which a search proves or refutes.
pub struct Finding {
    pub variant: Variant,
    pub what: &'static str,
    pub scope: Scope,
    pub invariant: Invariant,
}

/// Two clients that acquire once, while no time passes.
const BARE: Scope = Scope { asks: 1, ticks: 0, writes: 0, ..Scope::new(Tenure::Own) };
/// The same, with time in which a lease runs out.
const LATE: Scope = Scope { ticks: 3, ..BARE };
/// Two clients that write, and time in which a lease runs out.
const USUAL: Scope = Scope::new(Tenure::Own);
/// Two processes of one name, and the time in which the first one's lease runs out.
const REPLACED: Scope = Scope { one_name: true, asks: 2, ..LATE };

const fn finding(variant: Variant, what: &'static str, scope: Scope, invariant: Invariant) -> Finding {
    Finding { variant, what, scope, invariant }
}

/// Each is violated in its scope.
pub const FLAWS: &[Finding] = {
    use Variant::{
        CallerClockDecides, CameraPipeline, ChatGateway, DeadlineFromReply, NoToken, PaymentReconciler,
        ReleaseByName, RevokeWithoutHoldBack, SceneTrackers, SweeperDecides, TimestampCompared,
        TokenRaisedByRenewal, VideoOrchestrator,
    };
    &[
        finding(
            DeadlineFromReply,
            "a client counts its deadline from when the reply came",
            USUAL,
            TRUST_IS_BACKED,
        ),
        finding(
            RevokeWithoutHoldBack,
            "a revoked lease ends at once, and nothing is held back",
            Scope { revokes: 1, ..USUAL },
            TRUST_IS_BACKED,
        ),
        finding(
            ReleaseByName,
            "a release names its holder and shows no token",
            Scope { clients: 1, asks: 3, crashes: 1, ..USUAL },
            TRUST_IS_BACKED,
        ),
        finding(
            SweeperDecides,
            "an acquire goes by the row alone, and the sweeper deletes without judging again",
            Scope { nominations: 2, writes: 0, ..USUAL },
            ONE_TRUSTS,
        ),
        finding(
            TokenRaisedByRenewal,
            "a token is raised by renewals and kept by a change of holder",
            USUAL,
            TOKENS_GROW,
        ),
        finding(NoToken, "there is no token", USUAL, IN_ORDER),
        finding(
            CallerClockDecides,
            "expiry is judged by the wall clock of the process that asks",
            Scope { ahead_ms: [0, 2_000], ..USUAL },
            ONE_TRUSTS,
        ),
        finding(
            TimestampCompared,
            "the answer is a timestamp, which the holder compares with its own wall clock",
            Scope { ahead_ms: [-2_000, 0], ..USUAL },
            ONE_TRUSTS,
        ),
        finding(SceneTrackers, "a tracker works until a renewal is refused", LATE, ONE_TRUSTS),
        finding(
            SceneTrackers,
            "a release shows the holder's name: one that arrives twice ends the next lease",
            Scope { asks: 3, repeats: 1, ..BARE },
            TRUST_IS_BACKED,
        ),
        finding(
            SceneTrackers,
            "a renewal shows the holder's name: a process that was replaced renews its successor's lease",
            REPLACED,
            LATER_UNTOUCHED,
        ),
        finding(
            SceneTrackers,
            "consumers that cannot ask for the version compare with the one that they saw last",
            Scope { asks: 2, writes: 2, outages: 2, ..BARE },
            IN_ORDER,
        ),
        finding(
            PaymentReconciler,
            "a claim is judged by the worker's clock, and one is ahead",
            Scope { ahead_ms: [0, 2_000], ..BARE },
            ONE_TRUSTS,
        ),
        finding(PaymentReconciler, "nothing tells a worker that its claim has run out", LATE, ONE_TRUSTS),
        finding(
            PaymentReconciler,
            "a change of status shows the owner's name: a process that was replaced uses its successor's claim",
            REPLACED,
            LATER_UNTOUCHED,
        ),
        finding(CameraPipeline, "a runner works for five minutes without an answer", LATE, ONE_TRUSTS),
        finding(CameraPipeline, "the id of a lease has no order, so nothing can be fenced", USUAL, IN_ORDER),
        finding(ChatGateway, "a run works until a renewal is refused, if then", LATE, ONE_TRUSTS),
        finding(
            ChatGateway,
            "a renewal or unlock shows the node: a run that took too long uses the lock of the next one",
            REPLACED,
            LATER_UNTOUCHED,
        ),
        finding(ChatGateway, "a lock has no number, so nothing can be fenced", USUAL, IN_ORDER),
        finding(VideoOrchestrator, "a pod works until the broker refuses it", LATE, ONE_TRUSTS),
        finding(
            VideoOrchestrator,
            "the mark is looked up before the work and set after it",
            Scope { asks: 2, writes: 1, ..LATE },
            EFFECT_ONCE,
        ),
    ]
};

/// Each holds in its scope: what the five have right, and that their flaws show by the fault that is named, since
/// without it there is no violation.
pub const MERITS: &[Finding] = {
    use Variant::{CameraPipeline, ChatGateway, PaymentReconciler, SceneTrackers, VideoOrchestrator};
    /// Not long enough for a lease to run out.
    const EARLY: Scope = Scope { ticks: 1, asks: 2, ..BARE };
    const NAMED: Scope = Scope { one_name: false, ..REPLACED };
    &[
        finding(SceneTrackers, "one works while no lease runs out", EARLY, ONE_TRUSTS),
        finding(
            SceneTrackers,
            "a release that arrives once ends its own lease",
            Scope { asks: 3, ..BARE },
            TRUST_IS_BACKED,
        ),
        finding(
            SceneTrackers,
            "a renewal under a name of its own renews its own lease",
            NAMED,
            LATER_UNTOUCHED,
        ),
        finding(SceneTrackers, "versions grow", REPLACED, TOKENS_GROW),
        finding(
            SceneTrackers,
            "a consumer that asks for the version admits nothing old",
            Scope { asks: 2, writes: 2, ..BARE },
            IN_ORDER,
        ),
        finding(PaymentReconciler, "one works while clocks agree and no claim runs out", EARLY, ONE_TRUSTS),
        finding(
            PaymentReconciler,
            "a change under a name of its own uses its own claim",
            NAMED,
            LATER_UNTOUCHED,
        ),
        finding(
            PaymentReconciler,
            "the status is compared too, so no older change follows a newer one",
            Scope { asks: 2, repeats: 1, one_name: true, ahead_ms: [0, 2_000], ..BARE },
            IN_ORDER,
        ),
        finding(CameraPipeline, "one works while no lease runs out", EARLY, ONE_TRUSTS),
        finding(
            CameraPipeline,
            "who renews or releases shows the id of the lease",
            Scope { repeats: 1, ticks: 2, ..REPLACED },
            LATER_UNTOUCHED,
        ),
        finding(ChatGateway, "one works while no lock runs out", EARLY, ONE_TRUSTS),
        finding(ChatGateway, "an unlock from another node ends nothing", NAMED, LATER_UNTOUCHED),
        finding(VideoOrchestrator, "one works while no partition is taken away", EARLY, ONE_TRUSTS),
        finding(
            VideoOrchestrator,
            "a command takes effect once while no partition is taken away",
            Scope { asks: 3, writes: 2, ..EARLY },
            EFFECT_ONCE,
        ),
        finding(
            VideoOrchestrator,
            "the broker refuses what an earlier generation sends",
            Scope { asks: 2, ..LATE },
            LATER_UNTOUCHED,
        ),
    ]
};
