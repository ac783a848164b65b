package main

import (
	"net/http"

	"github.com/weir-go/weir/config"
)

// deleteCount resets a client's count, for the operator: DELETE /debug/count?policy=core and
// subject=alice, or address=192.0.2.7. Another site's page can't make a browser send DELETE,
// as it could POST.
func deleteCount(s *config.Stack, program *settings) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		policy := s.Config.Policies[r.FormValue("policy")]
		if policy == nil {
			writeError(w, http.StatusBadRequest, "policy must be the name of one")
			return
		}
		key, err := program.user().For(r.FormValue("subject"))
		if r.FormValue("address") != "" {
			key, err = program.address().For(r.FormValue("address"))
		}
		if err != nil {
			writeError(w, http.StatusBadRequest, "there must be a subject, or an address such as 192.0.2.7: "+err.Error())
			return
		}
		if err := s.Throttler.Reset(r.Context(), policy.Charge(key)); err != nil {
			writeError(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}
