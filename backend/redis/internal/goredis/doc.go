// Package goredis mends what a throttler can't live with in go-redis. It decides nothing, and
// knows nothing of counts.
//
// Each of these was seen in go-redis 9.22.0. When a later version passes the tests without a
// part of this package, delete that part.
//
//   - After as many failed dials as a pool has connections, go-redis dials once a second, and
//     fails all calls in between. See failLate. Delete it when a pool dials whenever a call needs
//     a connection.
//   - A dial with TLS outlasts its context. See dialTLS, which also explains a server without
//     TLS. Delete its tls.Dialer when options.NewDialer uses DialContext.
//   - A pool sees that the server closed an idle connection on plain sockets alone. See
//     tlsSocket. Delete it when connCheck looks below TLS, and reads what is there.
//   - A reply's announced size is allocated before the reply has come. See boundedConn. Delete
//     its framing when the reader grows its memory as data comes.
//   - A connection whose first command fails is left to the garbage collector. See
//     boundedConn.closeUnused. Delete it when initConn closes the connection.
//   - The error of a login loses its outermost layer, hence errors.Join in this package. Delete
//     it when initPooledConn returns the error.
//   - Options for maintenance notifications resolve the server's name for up to 2 s in each new
//     client, also when they are off. See noMaintNotifications. Delete it when they don't.
//   - A context's deadline passes while a reply is read, unless ContextTimeoutEnabled is set, and
//     a Cluster's routing policies ask for COMMAND for up to 5 s. See Client.Within.
//   - A pipeline whose login was refused leaves its commands without an error. See Client.send.
//     Delete that when Exec sets the error of each command.
//   - MaxRetries sends a command again after a lost reply, which would charge twice. See onceCmd.
//   - A failover client asks one Sentinel, which may learn of a failover seconds after the others.
//     See sentinels. Delete them when the failover client believes the newest epoch of all
//     Sentinels, and follows +failover-state-wait-promotion.
package goredis
