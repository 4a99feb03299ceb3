//! The files of a file system: every name leads to a file, every file has as many names as it says
//! or waits to be freed, every object belongs to something, and the accounts of users and groups
//! are the sums of what is theirs.

use super::Report;
use crate::dmu::{Dnode, Objset, resident};
use crate::dsl::{DslDataset, Quota};
use crate::error::Result;
use crate::spa::Spa;
use crate::types::ObjectId;
use crate::zap::Zap;
use crate::zpl::check::{FileFacts, FileReader};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zilla_ondisk::dnode::{DNODE_FLAG_USEROBJUSED_ACCOUNTED, DNODE_FLAG_USERUSED_ACCOUNTED, DNODE_MIN_SIZE};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::object_type::{DMU_OT_DIRECTORY_CONTENTS, DMU_OT_PLAIN_FILE_CONTENTS};
use zilla_ondisk::objset::{OBJSET_FLAG_USERACCOUNTING_COMPLETE, OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE};

const MASTER_NODE: u64 = 1;

#[derive(Default)]
struct Tree {
    files: BTreeMap<u64, FileFacts>,
    /// By file: the directories that have a name for it.
    names: BTreeMap<u64, Vec<u64>>,
    queued: BTreeSet<u64>,
    /// Objects that are no files.
    others: BTreeMap<u64, u8>,
    accounts: BTreeMap<(Quota, u64), (u64, u64)>,
}

pub(super) async fn check(spa: &Arc<Spa>, ds: &Arc<DslDataset>, report: &mut Report) -> Result<()> {
    if ds.phys().bp.is_hole() {
        return Ok(());
    }
    let os = spa.dsl.objset(ds).await?;
    if os.os_type() != ObjsetType::Zfs as u64 {
        return Ok(());
    }
    // The origin that all file systems come from is an empty objset.
    if resident(|| os.next_object(ObjectId(0))).await?.is_none() {
        return Ok(());
    }
    let name = ds.name();
    let mut tree = Tree::default();
    read(&os, &mut tree, &name, report).await?;
    report.files += tree.files.len() as u64;
    known_objects(&os, &mut tree, &name, report).await?;
    check_names(&tree, &name, report);
    check_accounts(spa, ds, &os, &tree, &name, report).await
}

async fn read(os: &Arc<Objset>, tree: &mut Tree, name: &str, report: &mut Report) -> Result<()> {
    let reader = FileReader::open(os).await?;
    for id in reader.queued().await? {
        tree.queued.insert(id);
    }
    let mut at = ObjectId(0);
    while let Some(id) = resident(|| os.next_object(at)).await? {
        at = id;
        let dn = os.hold_wait(id).await?;
        if !matches!(dn.otype(), DMU_OT_PLAIN_FILE_CONTENTS | DMU_OT_DIRECTORY_CONTENTS) {
            tree.others.insert(id.0, dn.otype());
            continue;
        }
        account(&dn, &mut tree.accounts);
        let facts = match reader.facts(&dn).await {
            Ok(facts) => facts,
            Err(e) => {
                report.add(format!("{name}: file {id}: {e}"));
                continue;
            }
        };
        if facts.is_dir != (dn.otype() == DMU_OT_DIRECTORY_CONTENTS) {
            report.add(format!("{name}: file {id}: its object's type does not fit its mode"));
        }
        if facts.is_dir {
            for (entry, child, dtype) in reader.entries(&dn).await? {
                tree.names.entry(child).or_default().push(id.0);
                let entry = String::from_utf8_lossy(&entry).into_owned();
                match os.hold_wait(ObjectId(child)).await {
                    Ok(c) => match reader.facts(&c).await {
                        Ok(f) if dtype != 0 && dtype != f.dtype => {
                            report.add(format!(
                                "{name}: {entry:?} in {id}: an entry of another type than its file"
                            ));
                        }
                        Ok(_) => {}
                        Err(e) => report.add(format!("{name}: {entry:?} in {id}: {e}")),
                    },
                    Err(e) => report.add(format!("{name}: {entry:?} in directory {id}: {e}")),
                }
            }
        } else if facts.regular {
            let blksz = u64::from(dn.blksz());
            let last = dn.phys().maxblkid;
            let end = facts.size.div_ceil(blksz.max(1)).max(1);
            if last >= end && highest_block(&dn).await? >= Some(end) {
                report.add(format!("{name}: file {id}: {} bytes, and contents in block {last}", facts.size));
            }
        }
        tree.files.insert(id.0, facts);
    }
    Ok(())
}

/// The highest block that is no hole.
async fn highest_block(dn: &Arc<Dnode>) -> Result<Option<u64>> {
    let (mut at, mut last) = (0, None);
    while let Some(b) = resident(|| dn.next_block(at, false)).await? {
        last = Some(b);
        at = b + 1;
    }
    Ok(last)
}

fn account(dn: &Dnode, accounts: &mut BTreeMap<(Quota, u64), (u64, u64)>) {
    let p = dn.phys();
    let Some(owner) = crate::zpl::owner_of(p.bonustype, &p.bonus) else { return };
    if p.flags & DNODE_FLAG_USERUSED_ACCOUNTED == 0 {
        return;
    }
    let objects = u64::from(p.flags & DNODE_FLAG_USEROBJUSED_ACCOUNTED != 0);
    let whose =
        [(Quota::User, owner.uid), (Quota::Group, owner.gid), (Quota::Project, owner.projid.unwrap_or(0))];
    for key in whose {
        let sum = accounts.entry(key).or_default();
        sum.0 += p.used_bytes() + DNODE_MIN_SIZE as u64;
        sum.1 += objects;
    }
}

/// Takes out of `others` everything that the master node leads to.
async fn known_objects(os: &Arc<Objset>, tree: &mut Tree, name: &str, report: &mut Report) -> Result<()> {
    tree.others.remove(&MASTER_NODE);
    let mut todo = vec![MASTER_NODE];
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id) {
            continue;
        }
        for e in Zap::open(os, id).await?.entries().await? {
            let Some(n) = e.value.as_u64() else { continue };
            if tree.others.remove(&n).is_some() && e.name_str() == "SA_ATTRS" {
                todo.push(n);
            }
        }
    }
    for (id, otype) in &tree.others {
        // Private directories of attributes and large old ACLs are led to by files.
        if !tree.files.values().any(|f| f.leads_to(*id)) {
            report.add(format!("{name}: object {id} of type {otype} belongs to nothing"));
        }
    }
    Ok(())
}

fn check_names(tree: &Tree, name: &str, report: &mut Report) {
    let none = Vec::new();
    let (mut entries, mut subdirs): (BTreeMap<u64, u64>, BTreeMap<u64, u64>) = Default::default();
    for dir in tree.names.values().flatten() {
        *entries.entry(*dir).or_default() += 1;
    }
    for (id, f) in tree.files.iter().filter(|(_, f)| f.is_dir && !f.is_root && !f.is_xattr_dir) {
        // One that waits to be freed is no longer counted.
        if tree.queued.contains(id) {
            continue;
        }
        *subdirs.entry(f.parent).or_default() += 1;
    }
    let mut xattr_dirs: BTreeMap<u64, u64> = BTreeMap::new();
    for (id, f) in tree.files.iter().filter(|(_, f)| f.xattr_dir != 0) {
        if let Some(other) = xattr_dirs.insert(f.xattr_dir, *id) {
            report.add(format!("{name}: files {id} and {other} share an attribute directory"));
        }
    }
    for (id, f) in &tree.files {
        let names = tree.names.get(id).unwrap_or(&none);
        let queued = tree.queued.contains(id);
        if let Some(owner) = xattr_dirs.get(id) {
            if !f.is_dir || !names.is_empty() || queued {
                report.add(format!(
                    "{name}: attribute directory {id} of {owner} has names or waits to be freed"
                ));
            }
            continue;
        }
        let root = f.is_root;
        if queued && (!names.is_empty() || (f.links != 0 && !f.is_xattr_dir)) {
            report.add(format!("{name}: file {id} waits to be freed, but has {} names", names.len()));
        }
        if !queued && !root && names.is_empty() {
            report.add(format!("{name}: file {id} has no name"));
        }
        if f.is_dir && !queued {
            let below = subdirs.get(id).copied().unwrap_or(0);
            report.same(|| format!("{name}: links of directory {id}"), f.links, 2 + below);
            if names.len() > 1 || names.iter().any(|n| *n != f.parent) {
                report.add(format!("{name}: directory {id} of {} has names in {names:?}", f.parent));
            }
            let count = entries.get(id).copied().unwrap_or(0);
            report.same(|| format!("{name}: size of directory {id}"), f.size, count + 2);
        } else if !f.is_dir {
            report.same(|| format!("{name}: links of file {id}"), f.links, names.len() as u64);
        }
    }
    for id in tree.queued.iter().filter(|id| !tree.files.contains_key(id)) {
        report.add(format!("{name}: {id} waits to be freed, but is no file"));
    }
}

async fn check_accounts(
    spa: &Arc<Spa>,
    ds: &Arc<DslDataset>,
    os: &Arc<Objset>,
    tree: &Tree,
    name: &str,
    report: &mut Report,
) -> Result<()> {
    let flags = os.phys().flags;
    if flags & OBJSET_FLAG_USERACCOUNTING_COMPLETE == 0 {
        return Ok(());
    }
    let objects = flags & OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE != 0;
    for kind in [Quota::User, Quota::Group, Quota::Project] {
        if os.special(kind.object()).is_none() {
            continue;
        }
        let mut says: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for a in spa.dsl.userspace(ds, kind).await? {
            says.insert(a.id, (a.bytes, a.objects));
        }
        let is = |id: &u64| tree.accounts.get(&(kind, *id)).copied().unwrap_or_default();
        let ids: BTreeSet<u64> = says
            .keys()
            .copied()
            .chain(tree.accounts.keys().filter(|(k, _)| *k == kind).map(|(_, id)| *id))
            .collect();
        for id in &ids {
            let (bytes, count) = says.get(id).copied().unwrap_or_default();
            report.same(|| format!("{name}: bytes of {kind:?} {id}"), bytes, is(id).0);
            if objects {
                report.same(|| format!("{name}: objects of {kind:?} {id}"), count, is(id).1);
            }
        }
    }
    Ok(())
}
