package rls

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-go/weir/cmd/throttlerd/internal/descriptors"
)

// metadata returns the metadata that RESPONSE_DYNAMIC_METADATA adds to an answer: the request,
// and the metadata of the descriptors that are not over their limit, or in shadow_mode.
func (c *call) metadata() *structpb.Struct {
	fields := map[string]*structpb.Value{"domain": structpb.NewStringValue(c.req.Domain)}
	var list []*structpb.Value
	passed := make(map[string]*structpb.Value)
	for i, d := range c.req.Descriptors {
		var entries []*structpb.Value
		for _, e := range d.GetEntries() {
			entries = append(entries, structpb.NewStringValue(fmt.Sprintf("%s=%s", e.GetKey(), e.GetValue())))
		}
		single := map[string]*structpb.Value{"entries": structpb.NewListValue(&structpb.ListValue{Values: entries})}
		if l := d.GetLimit(); l != nil {
			single["limit"] = structpb.NewStringValue(l.String())
		}
		if h := d.GetHitsAddend(); h != nil {
			single["hitsAddend"] = structpb.NewNumberValue(float64(h.GetValue()))
		}
		list = append(list, structpb.NewStructValue(&structpb.Struct{Fields: single}))
		if item := &c.items[i]; item.rule != nil && !item.isUnlimited() && c.statuses[i].Code == ok && !c.losesMetadata(item.rule, d.GetEntries()) {
			merge(passed, item.rule.Metadata)
		}
	}
	fields["descriptors"] = structpb.NewListValue(&structpb.ListValue{Values: list})
	if c.req.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(c.req.HitsAddend))
	}
	if len(passed) > 0 {
		fields["metadata"] = structpb.NewStructValue(&structpb.Struct{Fields: passed})
	}
	return &structpb.Struct{Fields: fields}
}

// losesMetadata reports whether the metadata of a rule is left out, to be compatible.
func (c *call) losesMetadata(r *descriptors.Rule, entries descriptors.Entries) bool {
	return c.server.answers.Compatible && r.Metadata != nil && r.LosesMetadata(c.domain.Stat(r, entries))
}

// merge adds the fields of from that to lacks, and merges structs that are in both. It changes
// only structs that to owns.
func merge(to map[string]*structpb.Value, from *structpb.Struct) {
	for name, value := range from.GetFields() {
		before, shared := to[name].GetKind().(*structpb.Value_StructValue)
		if s := value.GetStructValue(); s != nil && (shared || to[name] == nil) {
			extra := make(map[string]*structpb.Value)
			if shared {
				extra = before.StructValue.Fields
			}
			merge(extra, s)
			value = structpb.NewStructValue(&structpb.Struct{Fields: extra})
		} else if to[name] != nil {
			continue
		}
		to[name] = value
	}
}
