package main

import (
	"net/http"
	"net/netip"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
)

// deleteCount resets a client's count, for the operator: DELETE /debug/count?policy=core and
// subject=alice, or address=192.0.2.7. Another site's page can't make a browser send DELETE,
// as it could POST.
func deleteCount(s *config.Stack) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		policy := s.Config.Policies[r.FormValue("policy")]
		key := ""
		if subject := r.FormValue("subject"); subject != "" {
			key = middleware.SubjectKey(subject)
		} else if addr, err := netip.ParseAddr(r.FormValue("address")); err == nil {
			key = middleware.AddressKey(addr, nil)
		}
		if policy == nil || key == "" {
			writeError(w, http.StatusBadRequest, "policy must be the name of one, and there must be a subject, or an address such as 192.0.2.7")
			return
		}
		if err := s.Throttler.Reset(r.Context(), policy.Charge(key)); err != nil {
			writeError(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
