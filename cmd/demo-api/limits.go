package main

import (
	"errors"
	"net/http"

	"github.com/weir-go/weir/config"
	"github.com/weir-go/weir/middleware"
	"github.com/weir-go/weir/throttler"
)

// limits makes the middleware of the routes.
type limits struct {
	stack   *config.Stack
	options middleware.Options
	dry     *dryRuns
	err     error // errors of making them, joined
}

func newLimits(s *config.Stack, observed *observation) *limits {
	return &limits{stack: s, dry: newDryRuns(s.Config), options: middleware.Options{
		Deadline: s.Config.Deadline,
		Refuse: func(w http.ResponseWriter, r *http.Request, x middleware.Refusal) {
			x.DocumentationURL = "https://github.com/weir-go/weir/blob/main/docs/reference/headers.md"
			x.Write(w, r)
		},
		Dialect:       middleware.Dialects{middleware.GitHub{}, middleware.IETF{}},
		ExposeHeaders: true,
		Observer:      observed.observer,
	}}
}

// charge says what one policy charges a request.
type charge struct {
	policy    string
	key       middleware.Key
	partition *middleware.Key // the key that the count is within, or nil
	reported  bool            // the handler reports the real cost
	always    bool            // 304s are charged too
}

func (c charge) classifier(p *throttler.Policy) middleware.Classifier {
	classifier := middleware.Limit(p, c.key)
	if c.partition != nil {
		classifier = classifier.Within(*c.partition)
	}
	if c.reported {
		classifier = classifier.CostReported()
	}
	if c.always {
		classifier = classifier.NoRefund()
	}
	return classifier
}

// take returns middleware that takes all of these charges or none, and first tries their dry
// runs.
func (l *limits) take(charges ...charge) func(http.Handler) http.Handler {
	var enforced []middleware.Classifier
	for _, c := range charges {
		enforced = append(enforced, c.classifier(l.stack.Config.Policies[c.policy]))
	}
	take := l.middleware(middleware.All(enforced...), l.options)
	tried := l.dry.classifiers(charges)
	if tried == nil {
		return take
	}
	options := l.options
	options.DryRun = l.dry.count
	try := l.middleware(middleware.All(tried...), options)
	return func(next http.Handler) http.Handler { return try(take(next)) }
}

func (l *limits) middleware(c middleware.Classifier, o middleware.Options) func(http.Handler) http.Handler {
	m, err := middleware.New(l.stack.Throttler, c, &o)
	if err != nil {
		l.err = errors.Join(l.err, err)
		return func(next http.Handler) http.Handler { return next } // err keeps it from being served
	}
	return m
}

// status returns a handler that shows the remaining quota under these policies.
func (l *limits) status(charges ...charge) http.Handler {
	var classifiers []middleware.Classifier
	for _, c := range charges {
		classifiers = append(classifiers, c.classifier(l.stack.Config.Policies[c.policy]))
	}
	status, err := middleware.Status(l.stack.Throttler, middleware.All(classifiers...), &middleware.StatusOptions{Deadline: l.options.Deadline, Observer: l.options.Observer})
	l.err = errors.Join(l.err, err)
	return status
}
