package clientpage

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	memorybackend "github.com/weir-go/weir/backend/memory"
	"github.com/weir-go/weir/cmd/internal/operator"
	"github.com/weir-go/weir/throttler"
)

// Bounds of the file of operators.
const (
	minPassword = 12
	maxName     = 64
)

// readOperators reads a file of operators: a NAME:PASSWORD in each line. Empty lines, and lines that
// begin with #, are left out. The error says which line is wrong, and never the password.
func readOperators(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list := make(map[string]string)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, password, ok := strings.Cut(line, ":")
		switch {
		case !ok || name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) }):
			return nil, fmt.Errorf("%s:%d: it must be NAME:PASSWORD, with a name of up to %d bytes without blanks", file, n, maxName)
		case utf8.RuneCountInString(password) < minPassword:
			return nil, fmt.Errorf("%s:%d: the password of %s has %d characters; it must have %d or more, such as of: openssl rand -base64 18", file, n, name, utf8.RuneCountInString(password), minPassword)
		case list[name] != "":
			return nil, fmt.Errorf("%s:%d: %s is in two lines; it must be in one", file, n, name)
		}
		list[name] = password
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no operator; it must have a NAME:PASSWORD in each line", file)
	}
	return list, nil
}

// CheckOperators returns what is wrong with a file of operators, or nil if there is none. setting
// names the file in the program's configuration.
func CheckOperators(setting, file string) error {
	if file == "" {
		return nil
	}
	if _, err := readOperators(file); err != nil {
		return fmt.Errorf("%s: %w", setting, err)
	}
	return nil
}

// access lets operators in, by HTTP's basic authentication.
type access struct {
	file     string
	attempts *throttler.Throttler
}

// wrongPasswords is how many wrong passwords an address may try.
var wrongPasswords = &throttler.Policy{Name: "sign-in", Limits: []throttler.Limit{{Quota: 20, Window: time.Minute}}}

func newAccess(file string) *access {
	return &access{file: file, attempts: throttler.New(memorybackend.NewDefault(), nil)}
}

// operator returns the name of the operator that sent r. If there is none, it has answered r.
func (a *access) operator(w http.ResponseWriter, r *http.Request, p *page) (name string, ok bool) {
	name, password, sent := r.BasicAuth()
	if !sent {
		a.challenge(w)
		return "", false
	}
	address := r.RemoteAddr
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	key, err := operator.Address.For(address)
	if err != nil {
		key = address // no address of a network
	}
	attempt, err := a.attempts.Take(r.Context(), wrongPasswords.Charge(key)) // before the look at the password: guesses may come at once
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return "", false
	}
	if !attempt.Allowed {
		w.Header().Set("Retry-After", fmt.Sprint(int64(time.Until(attempt.RetryAt()).Seconds())+1))
		http.Error(w, "too many wrong passwords from this address; try again in a minute", http.StatusTooManyRequests)
		return "", false
	}
	list, err := readOperators(a.file)
	if err != nil {
		p.Log.Error("operators: no operator can sign in", "error", err)
		http.Error(w, "the file of operators is wrong, as the log says", http.StatusInternalServerError)
		return "", false
	}
	if !matches(list, name, password) {
		p.Log.Warn("operators: a wrong name or password", "address", address)
		a.challenge(w)
		return "", false
	}
	_, _ = a.attempts.Refund(r.Context(), attempt) // in memory, which answers
	return name, true
}

func (a *access) challenge(w http.ResponseWriter) {
	w.Header().Set("WWW-Authenticate", `Basic realm="weir operators", charset="UTF-8"`)
	http.Error(w, "sign in with a name and a password of the file of operators", http.StatusUnauthorized)
}

// matches reports whether an operator of that name has that password, in the same time whether the
// name or the password is wrong.
func matches(list map[string]string, name, password string) bool {
	found := 0
	sent := sha256.Sum256([]byte(password))
	for expected, right := range list {
		want := sha256.Sum256([]byte(right))
		sameName := subtle.ConstantTimeCompare([]byte(expected), []byte(name))
		found |= sameName & subtle.ConstantTimeCompare(want[:], sent[:])
	}
	return found == 1
}
