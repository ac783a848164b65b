package policies

// isMisspelled reports whether name is other with one letter more, less or different, or with two
// neighbors exchanged. Digits tell names apart: tier1 is no misspelling of tier2.
//
// Both names may be right, so this is narrower than Nearest of package config, which suggests a name
// for one that is known to be wrong.
func isMisspelled(name, other string) bool {
	i := 0
	for i < len(name) && i < len(other) && name[i] == other[i] {
		i++
	}
	a, b := name[i:], other[i:]
	switch len(a) - len(b) {
	case 1:
		return a[1:] == b && isLetter(a[0])
	case -1:
		return a == b[1:] && isLetter(b[0])
	case 0:
		if a == "" || !isLetter(a[0]) || !isLetter(b[0]) {
			return false
		}
		return a[1:] == b[1:] || len(a) > 1 && a[0] == b[1] && a[1] == b[0] && a[2:] == b[2:]
	}
	return false
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// meantBy returns the policy whose name is misspelled as name in an override or a plan, or "". A
// policy of that name may be charged without a middleware, if no name is near.
func (n *Names) meantBy(v *View, name string) string {
	if n.declared[name] != nil || n.keys.policies[name] != nil || (*v).Policy(name) != nil {
		return ""
	}
	for declared := range n.keys.policies {
		if isMisspelled(name, declared) {
			return declared
		}
	}
	return ""
}

// misspelled returns the names of policies in v, or of overrides or plans there, that are misspelled,
// and what they are to be.
func (n *Names) misspelled(v *View) map[string]string {
	found := make(map[string]string)
	for _, c := range v.contents {
		for name, e := range c.names.entries() {
			if n.keys.misspelled[name] {
				continue
			}
			right := ""
			switch {
			case e.policy != nil && e.children == 0 && c.policies <= maxChecked:
				right = n.meantByPolicy(v, c, name)
			case e.overrides != nil || e.plan != nil:
				right = n.meantBy(v, name)
			}
			if right != "" {
				found[name] = right
			}
		}
	}
	return found
}

// meantByPolicy returns the name that was meant by a policy in c, a content of v, or "" if its own
// was. A policy that no request is charged under may be a plan.
func (n *Names) meantByPolicy(v *View, c *content, name string) string {
	if n.declared[name] != nil || n.keys.policies[name] != nil {
		return ""
	}
	for declared := range n.keys.policies {
		if isMisspelled(name, declared) && v.Policy(declared) == nil && !v.mayHavePlan(declared, c) {
			return declared
		}
	}
	return ""
}

// mayHavePlan reports whether a policy in c may be a plan of keys under policy: a source with the
// function that names the plans has all of them or none.
func (v *View) mayHavePlan(policy string, c *content) bool {
	for _, o := range v.contents {
		if e := o.names.get(policy); e != nil && e.plan != nil && (o == c || o.policies == 0) {
			return true
		}
	}
	return false
}
