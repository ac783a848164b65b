package main

// refusalsConfig says what is refused again from memory.
type refusalsConfig struct {
	on     bool
	except []string // policies that always ask the backend
}

// readRefusals reads true, false or the policies that opt out. By default the
// cache is on wherever it saves a round trip.
func (c *config) readRefusals(v value) {
	remote := c.backends.remote() && c.backends.serving != sharesName
	cache := &c.backends.refusals
	cache.on = remote
	if v.missing() {
		return
	}
	switch text, ok := v.peek(); {
	case ok && text == "false":
		cache.on = false
		return
	case ok && text != "true":
		v.wrong("true, false or a mapping with except")
	case !ok:
		cache.except = c.readPolicyNames(v.fields("except")["except"])
	}
	if !remote {
		v.problem("%s is set, but counts live in memory, where it saves no round trip; leave it out, or choose another backend", v.name())
	}
}

func (c *config) readPolicyNames(v value) []string {
	const mustBe = "the name of a policy, such as core"
	unsure := v.r.failed() // a policy that seems to be missing may be the one that is wrong
	var names []string
	for _, item := range v.items("a list of policies, such as [search]") {
		name, ok := item.scalar(mustBe)
		if ok && c.policies[name] == nil && !unsure {
			item.wrong(mustBe)
		}
		names = append(names, name)
	}
	return names
}
