/*
 * zdb has done and said everything when it calls this, which then works for six seconds on emptying
 * a cache. The process ends after it in either case: crates/zilla-testkit says when this is used.
 */
void kernel_fini(void) {
}
