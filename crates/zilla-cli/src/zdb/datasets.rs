//! `-d` and `-i`: the MOS and all datasets, or one; and whether features are counted right.

use super::object::Context;
use super::ranges::{Range, range};
use super::{Zdb, put, text};
use std::collections::BTreeMap;
use std::sync::Arc;
use zilla_core::dmu::{Objset, resident};
use zilla_core::dsl::deadlist::Deadlist;
use zilla_core::dsl::{Bpobj, DslDataset, DslDir};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::types::{ObjectId, TXG_INITIAL};
use zilla_core::zap::Zap;
use zilla_ondisk::BlkPtr;
use zilla_ondisk::bpobj::BPOBJ_SIZE_V3;
use zilla_ondisk::dsl::{
    BOOKMARK_WORDS_V1, DD_FIELD_LIVELIST, DMU_POOL_DIRECTORY_OBJECT, DMU_POOL_FREE_BPOBJ,
    DMU_POOL_SYNC_BPOBJ, DS_FIELD_BOOKMARK_NAMES, WordsPhys, ZfsBookmarkPhys,
};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::feature::FEATURES;

/// The numbers of entries that lead on, by hash as OpenZFS goes through them.
async fn members(mos: &Arc<Objset>, zap: u64) -> Result<Vec<(String, u64)>> {
    if zap == 0 {
        return Ok(Vec::new());
    }
    let entries = Zap::open(mos, zap).await?.entries().await?;
    Ok(entries.iter().filter_map(|e| Some((e.name_str().into_owned(), e.value.as_u64()?))).collect())
}

impl Zdb {
    fn ranges(&self) -> Result<Vec<Range>> {
        self.opts.operands.iter().skip(1).map(|w| range(w)).collect()
    }

    pub(super) async fn mos_objects(&mut self) -> Result<()> {
        let ranges = self.ranges()?;
        self.mos(&ranges).await
    }

    async fn mos(&mut self, ranges: &[Range]) -> Result<()> {
        let (mos, root) = (self.spa.ctx.mos().clone(), self.spa.uberblock().rootbp);
        let used = self.spa.dsl.mos_dir().phys().used_bytes;
        let cx = Context::new(mos, "on".into());
        self.title("mos", "META", 0, TXG_INITIAL.0, used, &root, false);
        self.objects(&cx, None, ranges).await
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of a line")]
    fn title(&mut self, name: &str, kind: &str, id: u64, txg: u64, used: u64, root: &BlkPtr, torn: bool) {
        let (used, count) = (self.nice(used), root.fill());
        put!(self, "Dataset {name} [{kind}], ID {id}, cr_txg {txg}, {used}, {count} objects");
        if self.level('d') >= 4 {
            put!(self, ", rootbp {root}");
        }
        put!(self, "{}\n", if torn { " (inconsistent)" } else { "" });
    }

    pub(super) async fn all_datasets(&mut self) -> Result<()> {
        self.mos(&[]).await?;
        if self.level('d') >= 3 {
            self.free_lists().await?;
        }
        let mut counts = BTreeMap::new();
        let root = self.spa.dsl.root_dir();
        let mut order = Vec::new();
        self.below(&root, &mut order).await?;
        for ds in order {
            for f in FEATURES.iter().filter(|f| f.per_dataset() && ds.feature_is_active(f.name)) {
                *counts.entry(f.name).or_insert(0u64) += 1;
            }
            if let Err(e) = self.dataset(&ds, &[]).await {
                self.complain(&ds.name(), &e);
            }
        }
        self.feature_counts(&counts);
        Ok(())
    }

    /// All datasets under a dir in OpenZFS's order: children, snapshots, itself.
    async fn below(&mut self, root: &Arc<DslDir>, out: &mut Vec<Arc<DslDataset>>) -> Result<()> {
        let (dsl, mos) = (self.spa.dsl.clone(), self.spa.ctx.mos().clone());
        // Dirs to go into, and dirs whose children are done.
        let mut todo = vec![(root.clone(), false)];
        let mut seen = std::collections::BTreeSet::new();
        while let Some((dir, done)) = todo.pop() {
            if !done {
                if !seen.insert(dir.id()) {
                    let e = Error::corrupt(None, format!("dir {}", dir.id()), "it is its own ancestor");
                    self.complain("datasets", &e);
                    continue;
                }
                todo.push((dir.clone(), true));
                let children = members(&mos, dir.phys().child_dir_zapobj).await?;
                for (_, id) in children.iter().rev().filter(|(n, _)| !n.starts_with('$')) {
                    match dsl.dir(*id).await {
                        Ok(child) => todo.push((child, false)),
                        Err(e) => self.complain(&dir.name(), &e),
                    }
                }
                continue;
            }
            let head = match dsl.head(&dir).await {
                Ok(head) => head,
                Err(e) => {
                    self.complain(&dir.name(), &e);
                    continue;
                }
            };
            for (name, id) in members(&mos, head.phys().snapnames_zapobj).await? {
                match dsl.dataset(id).await {
                    Ok(snapshot) => out.push(snapshot),
                    Err(e) => self.complain(&format!("{}@{name}", dir.name()), &e),
                }
            }
            out.push(head);
        }
        Ok(())
    }

    fn feature_counts(&mut self, counts: &BTreeMap<&'static str, u64>) {
        let features = &self.spa.ctx.features;
        let mut lines = String::new();
        let mut wrong = false;
        for f in FEATURES.iter().filter(|f| f.per_dataset() && features.is_enabled(f.name)) {
            let (says, is) = (features.count(f.name), counts.get(f.name).copied().unwrap_or(0));
            if says == is {
                lines += &format!("Verified {} feature refcount of {is} is correct\n", f.name);
            } else {
                wrong = true;
                lines +=
                    &format!("{} feature refcount mismatch: {is} consumers != {says} refcount\n", f.name);
            }
        }
        self.damaged |= wrong;
        self.out.put(lines);
    }

    async fn free_lists(&mut self) -> Result<()> {
        let mos = self.spa.ctx.mos().clone();
        let directory = Zap::open(&mos, DMU_POOL_DIRECTORY_OBJECT).await?;
        for (name, title) in
            [(DMU_POOL_SYNC_BPOBJ, "Deferred frees"), (DMU_POOL_FREE_BPOBJ, "Pool snapshot frees")]
        {
            if let Some(id) = directory.try_get_u64(name).await? {
                self.bpobj_list(title, id).await?;
            }
        }
        Ok(())
    }

    /// A list of block pointers: one line, and at high levels what is in it.
    async fn bpobj_list(&mut self, title: &str, id: u64) -> Result<()> {
        let mos = self.spa.ctx.mos().clone();
        let list = Bpobj::open(&mos, id).await?;
        let p = list.phys()?;
        let bytes = self.nice(p.bytes);
        put!(self, "    {title}: object {id}, {} ", p.num_blkptrs);
        let counts_frees = mos.hold_wait(ObjectId(id)).await?.bonus().len() >= BPOBJ_SIZE_V3;
        let freed = if counts_frees { format!("{} freed, ", p.num_freed) } else { String::new() };
        if p.subobjs == 0 {
            put!(self, "blkptrs, {freed}{bytes}\n");
        } else {
            let (comp, uncomp) = (self.nice(p.comp), self.nice(p.uncomp));
            let (n, at) = (p.num_subobjs, p.subobjs);
            put!(self, "local blkptrs, {freed}{n} subobjs in object {at}, {bytes} ({comp}/{uncomp} comp)\n");
        }
        if self.level('d') >= 5 {
            for bp in self.spa.dsl.bpobj_all(id).await?.into_iter().rev() {
                put!(self, "\t{}\n", text::listed(&bp, self.level('d') > 5, bp.free_bit()));
            }
            put!(self, "\n");
        }
        Ok(())
    }

    /// The dataset that an operand names; its number does too.
    pub(super) async fn named(&self, target: &str) -> Result<Arc<DslDataset>> {
        let target = target.strip_suffix('/').unwrap_or(target);
        let number = target.split_once('/').and_then(|(_, n)| n.parse::<u64>().ok());
        // The pool may have been named by its guid.
        let (first, rest) = target.split_at(target.find(['/', '@']).unwrap_or(target.len()));
        let pool = self.spa.name();
        let name = if first == pool { target.to_owned() } else { format!("{pool}{rest}") };
        match (number, self.on('N')) {
            (Some(id), true) => self.spa.dsl.dataset(id).await,
            (None, true) => Err(Error::inval("supply a numeric objset ID with -N")),
            (number, false) => match (self.spa.dsl.by_name(&name).await, number) {
                (Err(e), Some(id)) if e.is(Errno::NoEnt) => self.spa.dsl.dataset(id).await,
                (found, _) => found,
            },
        }
    }

    pub(super) async fn one_dataset(&mut self, target: &str) -> Result<()> {
        let ranges = self.ranges()?;
        if target.split_once('/').is_some_and(|(_, n)| n == "0") {
            return self.mos(&ranges).await;
        }
        let ds = self.named(target).await?;
        self.dataset(&ds, &ranges).await
    }

    async fn dataset(&mut self, ds: &Arc<DslDataset>, ranges: &[Range]) -> Result<()> {
        let p = ds.phys();
        if p.bp.is_hole() {
            let (name, txg) = (ds.name(), p.creation_txg);
            self.title(&name, "NONE", ds.id(), txg, p.referenced_bytes, &p.bp, ds.is_inconsistent());
            return Ok(());
        }
        let os = self.spa.dsl.objset(ds).await?;
        let kind = match ObjsetType::from_number(os.os_type()) {
            Some(ObjsetType::Zfs) => "ZPL",
            Some(ObjsetType::Zvol) => "ZVOL",
            Some(ObjsetType::Meta) => "META",
            Some(ObjsetType::Other) => "OTHER",
            Some(ObjsetType::Any) => "ANY",
            Some(ObjsetType::None) => "NONE",
            None => "UNKNOWN",
        };
        let (name, used) = (ds.name(), p.referenced_bytes);
        self.title(&name, kind, ds.id(), p.creation_txg, used, &p.bp, ds.is_inconsistent());
        // A snapshot is not written to, so nothing is inherited.
        let kind = if ds.is_snapshot() { 0 } else { os.props().compress.kind as u8 };
        let compress = zilla_ondisk::enums::compress_name(kind);
        let mut cx = Context::new(os.clone(), compress.to_owned());
        if os.os_type() == ObjsetType::Zfs.number() && !os.is_encrypted() && self.level('d') >= 4 {
            match super::znode::Files::open(&os).await {
                Ok(files) => cx.files = Some(files),
                Err(e) => self.complain("files cannot be understood", &e),
            }
        }
        self.objects(&cx, Some(ds), ranges).await
    }

    /// What an objset holds, as far as the levels ask.
    async fn objects(&mut self, cx: &Context, ds: Option<&Arc<DslDataset>>, ranges: &[Range]) -> Result<()> {
        if !ranges.is_empty() {
            return self.some_objects(cx, ranges).await;
        }
        let level = self.level('d');
        if self.on('i') || level >= 2 {
            self.intent_log(&cx.os).await?;
        }
        if let Some(ds) = ds {
            self.deadlist("Deadlist", ds.phys().deadlist_obj).await?;
            let dir = ds.dir();
            if let Some(zap) = dir.zap().filter(|_| !ds.is_snapshot() && level >= 3) {
                let livelist = zap.try_get_u64(DD_FIELD_LIVELIST).await?;
                self.deadlist("Livelist", livelist.unwrap_or(0)).await?;
            }
            self.bookmarks(ds).await?;
        }
        if level < 2 {
            return Ok(());
        }
        let mut header = true;
        self.object(cx, ObjectId::META_DNODE, level, &mut header).await;
        for id in [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED] {
            if cx.os.special(id).is_some() {
                self.object(cx, id, level, &mut header).await;
            }
        }
        let (mut at, mut used, mut most) = (ObjectId(0), 0, 0);
        while let Some(id) = resident(|| cx.os.next_object(at)).await? {
            let slots = self.object(cx, id, level, &mut header).await;
            used += slots;
            most = id.0 + slots.saturating_sub(1);
            at = id;
        }
        let empty = 100.0 * most.saturating_sub(used) as f64 / most.max(1) as f64;
        put!(self, "\n    Dnode slots:\n\tTotal used:    {used:10}\n\tMax used:      {most:10}\n");
        put!(self, "\tPercent empty: {empty:10.6}\n\n");
        match std::mem::take(&mut self.leaked) {
            0 => {}
            n => put!(self, "{n} potentially leaked objects detected\n"),
        }
        Ok(())
    }

    async fn some_objects(&mut self, cx: &Context, ranges: &[Range]) -> Result<()> {
        let (mut header, level) = (true, self.level('d'));
        for r in ranges {
            if r.from == 0 || r.from == r.to {
                let id = ObjectId(r.from);
                if id.0 != 0 {
                    cx.os.hold_wait(id).await?;
                }
                self.object(cx, id, level, &mut header).await;
            }
            if r.from == r.to {
                continue;
            }
            let mut at = ObjectId(r.from.saturating_sub(1));
            while let Some(id) = resident(|| cx.os.next_object(at)).await?.filter(|id| id.0 <= r.to) {
                at = id;
                // What cannot be held is shown, as what it is.
                let wanted = cx.os.hold_wait(id).await.map_or(true, |dn| r.kinds.wants(dn.otype()));
                if wanted {
                    self.object(cx, id, level, &mut header).await;
                }
            }
        }
        put!(self, "\n");
        Ok(())
    }

    async fn deadlist(&mut self, title: &str, id: u64) -> Result<()> {
        if self.level('d') < 3 || id == 0 {
            return Ok(());
        }
        let list = match self.spa.dsl.deadlist_open(id).await? {
            Deadlist::Keyed(list) => list,
            Deadlist::Plain(_) => return self.bpobj_list("old-format deadlist", id).await,
        };
        let s = list.space()?;
        let (used, comp, uncomp) = (self.nice(s.used), self.nice(s.comp), self.nice(s.uncomp));
        let n = self.nice(list.entries.len() as u64);
        put!(self, "\n    {title}: {used} ({comp}/{uncomp} comp), {n} entries\n");
        if self.level('d') < 4 {
            return Ok(());
        }
        put!(self, "\n");
        for (txg, object) in &list.entries {
            if self.level('d') < 5 {
                put!(self, "mintxg {txg} -> obj {object}\n");
            } else {
                self.bpobj_list(&format!("mintxg {txg} -> obj {object}"), *object).await?;
            }
        }
        Ok(())
    }

    async fn bookmarks(&mut self, ds: &Arc<DslDataset>) -> Result<()> {
        let Some(zap) = ds.zap().filter(|_| self.level('d') >= 4) else { return Ok(()) };
        let Some(id) = zap.try_get_u64(DS_FIELD_BOOKMARK_NAMES).await? else { return Ok(()) };
        let entries = Zap::open(self.spa.ctx.mos(), id).await?.entries().await?;
        if entries.is_empty() {
            return Ok(());
        }
        for e in entries {
            let words = e.value.as_u64s().unwrap_or_default();
            let name = text::name(&e.name);
            match ZfsBookmarkPhys::from_words(&words, BOOKMARK_WORDS_V1) {
                Ok(b) => put!(
                    self,
                    "\t#{name}: {{guid: {:x} creation_txg: {} creation_time: {} redaction_obj: {}}}\n",
                    b.guid,
                    b.creation_txg,
                    b.creation_time,
                    b.redaction_obj
                ),
                Err(e) => {
                    self.complain(&name, &Error::corrupt(None, "bookmark", e.to_string()));
                }
            }
        }
        Ok(())
    }
}
