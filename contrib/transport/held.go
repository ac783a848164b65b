package transport

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/weir-go/weir/throttler"
)

// hold renews the units that d has in flight until the first call of letGo, which releases
// them. If the release or a renewal fails, they lapse.
func (t *Transport) hold(ctx context.Context, d throttler.Decision) (letGo func()) {
	if !slices.ContainsFunc(d.Charges(), func(c throttler.Charge) bool { return c.Cost > 0 && c.Policy.Holds() }) {
		return func() {}
	}
	stop := t.throttler.Hold(ctx, d, nil)
	return sync.OnceFunc(func() {
		stop()
		ctx, cancel := detached(ctx)
		defer cancel()
		_, _ = t.throttler.Settle(ctx, d)
	})
}

// letGoOf has letGo called when the body of response has been read or closed.
func letGoOf(response *http.Response, letGo func()) {
	if response.Body == nil || response.Body == http.NoBody {
		letGo()
		return
	}
	body := &heldBody{response.Body, letGo}
	if w, ok := response.Body.(io.Writer); ok { // a connection that has switched protocols
		response.Body = heldConn{body, w}
	} else {
		response.Body = body
	}
}

type heldBody struct {
	io.ReadCloser
	letGo func()
}

func (b *heldBody) Read(p []byte) (n int, err error) {
	if n, err = b.ReadCloser.Read(p); err != nil {
		b.letGo()
	}
	return n, err
}

func (b *heldBody) Close() error {
	defer b.letGo()
	return b.ReadCloser.Close()
}

type heldConn struct {
	*heldBody
	io.Writer
}

// CloseWrite ends what is written, if the connection can do that, as net/http's own body does.
func (c heldConn) CloseWrite() error {
	if w, ok := c.Writer.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return fmt.Errorf("transport: CloseWrite: %w", http.ErrNotSupported)
}
