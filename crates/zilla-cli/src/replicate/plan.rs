//! What is to be sent, from where; and what may be destroyed. Pure: lists in, decisions out.

use super::end::Point;
use zilla_core::send::parse_token;

/// What an increment begins at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Nothing,
    Snapshot(Point),
    Bookmark(Point),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Plan {
    pub base: Base,
    /// None: the target has the newest.
    pub send: Option<Point>,
}

impl Plan {
    /// From the source's snapshots and bookmarks and the target's snapshots, the oldest first;
    /// `filled`: something is in the target.
    pub fn make(points: &[Point], marks: &[Point], have: &[Point], filled: bool) -> Result<Plan, String> {
        let Some(newest) = points.last() else { return Err("the source has no snapshot".into()) };
        let common = |of: &[Point]| of.iter().rev().find(|p| have.iter().any(|h| h.guid == p.guid)).cloned();
        // The newest that both have: a bookmark counts only where it is newer on the target than
        // any snapshot.
        let place = |p: &Point| have.iter().position(|h| h.guid == p.guid);
        let (snapshot, mark) = (common(points), common(marks));
        let base = match (snapshot, mark) {
            (Some(s), Some(m)) if place(&m) > place(&s) => Base::Bookmark(m),
            (Some(s), _) => Base::Snapshot(s),
            (None, Some(m)) => Base::Bookmark(m),
            (None, None) if filled => return Err("the two have no snapshot or bookmark in common".into()),
            (None, None) => Base::Nothing,
        };
        let there = have.iter().any(|h| h.guid == newest.guid);
        Ok(Plan { base, send: (!there).then(|| newest.clone()) })
    }

    /// What both have without anything being sent.
    pub fn common(&self) -> Option<Point> {
        match &self.base {
            Base::Snapshot(p) => Some(p.clone()),
            _ => None,
        }
    }
}

/// Which snapshots go, so that the newest `keep` of those with the prefix stay. What both ends have
/// in common stays, and what is newer.
pub fn to_prune<'a>(all: &'a [Point], prefix: &str, keep: usize, common: u64) -> Vec<&'a Point> {
    let older = all.iter().position(|p| p.guid == common).unwrap_or(0);
    let made: Vec<(usize, &Point)> =
        all.iter().enumerate().filter(|(_, p)| p.name.starts_with(prefix)).collect();
    let surplus = made.len().saturating_sub(keep);
    made.into_iter().take(surplus).filter(|(at, _)| *at < older).map(|(_, p)| p).collect()
}

/// Whether the rest of a stream may be sent that a target asks for, whose word the token is: of
/// this dataset only, and where it is `sealed`, which is to be sent raw, not in the clear. The
/// guids of what was sent raw are no secret of those who have it.
pub fn may_resume(token: &str, dataset: &str, sealed: bool) -> Result<(), String> {
    let asked = parse_token(token).map_err(|e| format!("asks for no stream that there is ({e})"))?;
    if asked.toname.split('@').next() != Some(dataset) {
        return Err(format!("asks for '{}', which is another dataset", asked.toname));
    }
    if sealed && !asked.raw {
        return Err(format!("asks for '{}' in the clear, and it is to be sent raw", asked.toname));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zilla_core::dsl::ResumeState;
    use zilla_core::send::token;

    #[test]
    fn a_target_gets_by_its_token_what_it_would_get_without() {
        let asks = |toname: &str, raw: bool| {
            let state =
                ResumeState { toguid: 7, toname: toname.into(), object: 1, raw, ..ResumeState::default() };
            token(&state).unwrap()
        };
        for (toname, raw, sealed) in
            [("tank/a@s", true, true), ("tank/a@s", false, false), ("tank/a@s", true, false)]
        {
            assert_eq!(may_resume(&asks(toname, raw), "tank/a", sealed), Ok(()), "{toname} {raw}");
        }
        let plain = may_resume(&asks("tank/a@s", false), "tank/a", true);
        assert!(plain.unwrap_err().contains("in the clear"));
        for other in ["tank/secret@s", "tank/a/b@s", "tank@s", "tank/ab@s", "", "@"] {
            let done = may_resume(&asks(other, true), "tank/a", true);
            assert!(done.unwrap_err().contains("another dataset"), "{other}");
        }
        assert!(may_resume("1-2-3-4", "tank/a", false).is_err());
    }

    fn points(guids: &[u64]) -> Vec<Point> {
        guids.iter().map(|g| Point { name: format!("r-{g}"), guid: *g }).collect()
    }

    fn base(guid: u64) -> Base {
        Base::Snapshot(points(&[guid]).remove(0))
    }

    #[test]
    fn increments_begin_at_the_newest_thing_that_both_have() {
        let plan =
            |s: &[u64], m: &[u64], t: &[u64]| Plan::make(&points(s), &points(m), &points(t), !t.is_empty());
        assert_eq!(plan(&[1, 2], &[], &[]).unwrap().base, Base::Nothing);
        let p = plan(&[1, 2, 3], &[], &[1, 2]).unwrap();
        assert_eq!((p.base, p.send.unwrap().guid), (base(2), 3));
        assert_eq!(plan(&[1, 2], &[], &[1, 2]).unwrap().send, None);
        let p = plan(&[3], &[2], &[1, 2]).unwrap();
        assert_eq!(p.base, Base::Bookmark(points(&[2]).remove(0)));
        // A bookmark of the same snapshot is not taken for it.
        assert_eq!(plan(&[1, 2], &[1], &[1]).unwrap().base, base(1));
        assert_eq!(plan(&[1, 3], &[2], &[1, 2]).unwrap().base, Base::Bookmark(points(&[2]).remove(0)));
        assert!(plan(&[4], &[], &[1]).unwrap_err().contains("common"));
        assert!(plan(&[], &[], &[]).unwrap_err().contains("no snapshot"));
    }

    #[test]
    fn names_of_others_are_never_pruned() {
        let mut all = points(&[1, 2, 3, 4, 5]);
        all[1].name = "monthly".into();
        let gone =
            |keep, common| to_prune(&all, "r-", keep, common).iter().map(|p| p.guid).collect::<Vec<_>>();
        assert_eq!(gone(1, 5), [1, 3, 4]);
        assert_eq!(gone(2, 5), [1, 3]);
        assert_eq!(gone(1, 3), [1], "what is newer than what both have stays");
        assert_eq!(gone(9, 5), [0; 0]);
        assert_eq!(gone(1, 77), [0; 0], "nothing in common");
    }

    proptest! {
        #[test]
        fn what_is_common_stays_and_enough_of_the_rest(n in 0usize..12, keep in 1usize..12, common in 0u64..14) {
            let all = points(&(0..n as u64).collect::<Vec<_>>());
            let gone = to_prune(&all, "r-", keep, common);
            prop_assert!(gone.iter().all(|p| p.guid < common));
            prop_assert!(n - gone.len() >= keep.min(n));
        }
    }
}
