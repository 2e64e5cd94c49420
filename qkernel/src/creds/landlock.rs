//! What threads have forbidden themselves (landlock(7)): rulesets, and domains, which are several
//! of them one below the other. What the rules are about are files; the VFS asks
//! (`fs/landlock.rs`).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::any::Any;
use core::fmt;

use crate::account::Lasting;
use crate::errno::{Errno, Result};

/// The most rulesets one below the other.
pub const MOST_LAYERS: u32 = 16;
/// What a rule takes of kernel memory, in bytes, with its share of the tree.
const RULE_BYTES: u64 = 64;

/// What is allowed at an object, and below it.
struct Rule {
    allowed: u64,
    /// Keeps the object, so that its key is not another's.
    object: Arc<dyn Any + Send + Sync>,
}

/// A set of rules: what they are about is forbidden where none allows it.
#[derive(Default)]
pub struct Rules {
    /// The kinds of access that are forbidden, as bits.
    handled: u64,
    by_object: BTreeMap<usize, Rule>,
    lasting: Lasting,
}

impl Rules {
    /// None yet, about these kinds of access.
    pub fn new(handled: u64) -> Self {
        Rules { handled, ..Rules::default() }
    }

    /// The kinds of access that they are about.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// What they allow at the object with this key.
    pub fn allowed(&self, key: usize) -> u64 {
        self.by_object.get(&key).map_or(0, |rule| rule.allowed)
    }

    /// Allows something at an object, besides what is allowed there; `key`: what tells it from
    /// others as long as `object` lives. ENOMEM.
    pub fn allow(
        &mut self,
        key: usize,
        object: Arc<dyn Any + Send + Sync>,
        allowed: u64,
    ) -> Result {
        if let Some(rule) = self.by_object.get_mut(&key) {
            rule.allowed |= allowed;
            return Ok(());
        }
        let more = Lasting::take(RULE_BYTES).map_err(|_| Errno::ENOMEM)?;
        self.lasting = core::mem::take(&mut self.lasting).and(more);
        self.by_object.insert(key, Rule { allowed, object });
        Ok(())
    }

    /// Another set of the same. ENOMEM.
    fn duplicate(&self) -> Result<Rules> {
        let lasting = Lasting::take(self.lasting.bytes()).map_err(|_| Errno::ENOMEM)?;
        let rule = |rule: &Rule| Rule { allowed: rule.allowed, object: rule.object.clone() };
        let by_object = self.by_object.iter().map(|(key, one)| (*key, rule(one))).collect();
        Ok(Rules { handled: self.handled, by_object, lasting })
    }
}

/// A ruleset that holds, and those above it.
struct Layer {
    rules: Rules,
    above: Domain,
    depth: u32,
}

/// What holds for a thread: all of its rulesets. Threads that it makes have the same, or one below.
#[derive(Clone, Default)]
pub struct Domain(Option<Arc<Layer>>);

impl Domain {
    /// True if nothing is forbidden.
    pub fn is_free(&self) -> bool {
        self.0.is_none()
    }

    /// One in which what `rules` forbid now is forbidden, too. E2BIG, ENOMEM.
    pub fn with(&self, rules: &Rules) -> Result<Domain> {
        let depth = self.0.as_ref().map_or(0, |layer| layer.depth) + 1;
        if depth > MOST_LAYERS {
            return Err(Errno::E2BIG);
        }
        let layer = Layer { rules: rules.duplicate()?, above: self.clone(), depth };
        Ok(Domain(Some(Arc::new(layer))))
    }

    /// Its rulesets, the last first.
    pub fn layers(&self) -> impl Iterator<Item = &Rules> {
        core::iter::successors(self.0.as_deref(), |layer| layer.above.0.as_deref())
            .map(|layer| &layer.rules)
    }

    /// True if all that is forbidden here is forbidden in `other`, which is this one or below it.
    pub fn is_above(&self, other: &Domain) -> bool {
        let Some(own) = &self.0 else { return true };
        let mut at = other;
        while let Some(layer) = &at.0 {
            if Arc::ptr_eq(own, layer) {
                return true;
            }
            at = &layer.above;
        }
        false
    }
}

impl PartialEq for Domain {
    fn eq(&self, other: &Domain) -> bool {
        self.is_above(other) && other.is_above(self)
    }
}

impl Eq for Domain {}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({} layers)", self.layers().count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let mut rules = Rules::new(0b111);
        rules.allow(1, Arc::new(()), 0b001).unwrap();
        rules.allow(1, Arc::new(()), 0b010).unwrap();
        rules
    }

    #[test]
    fn rules_add_up_and_later_ones_change_no_domain() {
        let mut rules = rules();
        let domain = Domain::default().with(&rules).unwrap();
        rules.allow(2, Arc::new(()), 0b100).unwrap();
        let held = domain.layers().next().unwrap();
        assert_eq!((held.allowed(1), held.allowed(2), held.allowed(3)), (0b011, 0, 0));
        assert_eq!(rules.allowed(2), 0b100);
    }

    #[test]
    fn domains_are_below_those_they_were_made_of() {
        let free = Domain::default();
        let one = free.with(&rules()).unwrap();
        let (two, other) = (one.with(&rules()).unwrap(), free.with(&rules()).unwrap());
        assert!(free.is_above(&free) && free.is_above(&two) && one.is_above(&two));
        assert!(one.is_above(&one) && !two.is_above(&one) && !one.is_above(&free));
        assert!(!one.is_above(&other) && !other.is_above(&two) && one != other);
    }

    #[test]
    fn there_are_sixteen_layers_at_most() {
        let mut domain = Domain::default();
        for _ in 0..MOST_LAYERS {
            domain = domain.with(&rules()).unwrap();
        }
        assert_eq!(domain.with(&rules()).unwrap_err(), Errno::E2BIG);
        assert_eq!(domain.layers().count(), 16);
    }
}
