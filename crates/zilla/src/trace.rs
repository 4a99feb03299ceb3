//! A pool's trace: what it reads and writes, record by record, for `zilla advise`.

use crate::pool::Pool;
use zilla_ondisk::trace::TraceHeader;

pub use zilla_core::trace::Recording;

impl Pool {
    /// Begins to record. None: somebody does already. It ends when the recording is dropped.
    pub fn record_trace(&self) -> Option<Recording> {
        self.spa().zio.tracer().start()
    }

    /// What a trace says of the pool before its records.
    pub fn trace_header(&self) -> TraceHeader {
        self.spa().trace_header()
    }
}
