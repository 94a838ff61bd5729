//! Every bound of the orchestrator, by name.

use std::time::Duration;

/// The most stages of a pipeline.
pub const STAGES_MAX: usize = 64;
/// The longest name of a stage.
pub const STAGE_NAME_BYTES_MAX: usize = 64;
/// The most attempts that a stage's configuration may allow after the first.
pub const RETRIES_MAX: u32 = 100;
/// The longest job id, and the longest value of a label.
pub const ID_BYTES_MAX: usize = 255;
/// The most labels of a job.
pub const LABELS_MAX: usize = 16;
/// The longest key of a command that can take effect: room for two ids and what is between them.
pub const COMMAND_KEY_BYTES_MAX: usize = 2 * ID_BYTES_MAX + 1;
/// The longest key of a letter that is kept as it is: longer than that of any command that can take effect. Of a longer
/// one the beginning and the length are kept.
pub const KEY_BYTES_MAX: usize = 1024;
/// How much is kept of a key that is too long, in characters: still longer than that of any command.
pub const KEY_CHARS_KEPT: usize = COMMAND_KEY_BYTES_MAX + 1;
/// The longest path to a value.
pub const PATH_BYTES_MAX: usize = 255;
/// The most names in a path.
pub const PATH_PARTS_MAX: usize = 16;
/// The largest template of a task's arguments, as JSON.
pub const TEMPLATE_BYTES_MAX: usize = 16 * 1024;
/// How deep a template may be nested.
pub const TEMPLATE_DEPTH_MAX: usize = 16;
/// The most placeholders of a template.
pub const PLACEHOLDERS_MAX: usize = 256;
/// The most bytes that values may take in the place of a template's placeholders.
pub const FILLED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest command.
pub const COMMAND_BYTES_MAX: usize = 1024 * 1024;
/// The largest result of a stage that is kept.
pub const RESULT_BYTES_MAX: usize = 256 * 1024;
/// The largest body of a request: reports of one or more tasks.
pub const REPORTS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// The longest reason that is kept; what is longer is cut, and says so.
pub const REASON_BYTES_MAX: usize = 2_000;
/// How much of an id or a key a reason shows, in characters.
pub const SHOWN_CHARS_MAX: usize = 100;
/// The longest time that a stage may be given.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How many bytes of reports are put into mailboxes at once.
pub const DELIVERY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How many entries of the mailbox one transaction takes.
pub const MAILBOX_BATCH: i64 = 500;
/// How many entries of the outbox are sent at once, for each channel of a partition.
pub const OUTBOX_BATCH: i64 = 500;
/// How many jobs may wait in a channel of a partition for a service that does not take their tasks, before others do.
pub const JOBS_LEFT_MAX: usize = 50_000;
/// How many requests to drop a task are under way at once, for each channel of a partition.
pub const REVOKES_AT_ONCE: usize = 16;
/// How long a request to drop a task may take.
pub const REVOKE_WITHIN: Duration = Duration::from_secs(10);
/// How many stages one sweep looks at.
pub const SWEEP_BATCH: i64 = 500;
/// How many inbox marks, old letters and old jobs are deleted at once.
pub const CLEANING_BATCH: i64 = 500;
/// How many parked commands one redrive applies in one transaction; the rest follow in the next.
pub const REDRIVE_BATCH: i64 = 500;

/// Polling guarantees that nothing in the mailbox or outbox is missed; hints make it faster.
pub const POLL_EVERY: Duration = Duration::from_secs(1);
/// Mail that is committed this long after it was written, or later, may have to wait for a full read of the mailbox.
pub const LATE_MAIL_MAX: Duration = Duration::from_secs(2);
/// How often, at most, the outbox is searched for rows that should not be there any more.
pub const OUTBOX_SEARCH_EVERY: Duration = Duration::from_secs(5);
/// How often deadlines are looked at.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How often inbox marks, letters and jobs are cleaned, a bite at a time.
pub const CLEANING_EVERY: Duration = Duration::from_secs(5);
/// How often processes tell each other of new mail at most: each NOTIFY takes a lock that all of PostgreSQL shares.
pub const NOTIFY_EVERY: Duration = Duration::from_millis(20);

/// The most entries of a page of a list.
pub const PAGE_MAX: i64 = 1_000;
/// A page of a list unless the request says otherwise.
pub const PAGE_DEFAULT: i64 = 100;
/// How long a request over HTTP may take.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
