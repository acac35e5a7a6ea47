// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// ExitError is returned when a command has ended with a status other than 0.
type ExitError struct{ Status int }

func (e *ExitError) Error() string { return fmt.Sprintf("exit status %d", e.Status) }

// Run runs a command in the guest, outside of the lab's machines, in this process's working directory and with its environment. The end of
// ctx ends the command.
func (d Dir) Run(ctx context.Context, c machine.Command) error {
	client, err := d.dial(ctx)
	if err != nil {
		return d.explain(err)
	}
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return d.explain(fmt.Errorf("start a session in the guest: %w", err))
	}
	session.Stdin, session.Stdout, session.Stderr = c.Stdin, c.Stdout, c.Stderr
	text, err := d.script(c.Args)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		_ = session.Signal(ssh.SIGTERM)
		time.AfterFunc(terminationDelay, func() { _ = client.Close() })
	})
	defer stop()
	err = session.Run(text)
	var exit *ssh.ExitError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &exit):
		return &ExitError{exit.ExitStatus()}
	case err != nil:
		return d.explain(fmt.Errorf("run a command in the guest: %w", err))
	}
	return nil
}

// terminationDelay is the time that a command has to end after SIGTERM.
const terminationDelay = 20 * time.Second

// dial connects to the guest.
func (d Dir) dial(ctx context.Context) (*ssh.Client, error) {
	s, err := d.spec()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(d.path(userKey))
	if err != nil {
		return nil, fmt.Errorf("read the key of the guest's user: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(own)
	if err != nil {
		return nil, fmt.Errorf("parse the key of the guest's user: %w", err)
	}
	host, err := ssh.ParsePrivateKey([]byte(s.HostKey))
	if err != nil {
		return nil, fmt.Errorf("parse the guest's key: %w", err)
	}
	dialer, address := net.Dialer{Timeout: dialTimeout}, s.Address.String()
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the guest: %w", err)
	}
	_ = conn.SetDeadline(time.Now().Add(handshakeTimeout))
	client, channels, requests, err := ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: ssh.FixedHostKey(host.PublicKey()),
	})
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("log in to the guest: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	return ssh.NewClient(client, channels, requests), nil
}

const (
	dialTimeout      = 5 * time.Second
	handshakeTimeout = 30 * time.Second // the guest may be busy
)

// script returns the shell command that runs a command with this process's environment and working directory. The guest has its own cache
// and state.
func (d Dir) script(args []string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") })
	environment = append(environment, "KILN_CACHE="+d.cache(), "KILN_LAB_STATE="+d.state(), InGuest+"=1")
	words := append(append([]string{"exec", "env", "-i"}, environment...), args...)
	for i := 3; i < len(words); i++ {
		words[i] = quote(words[i])
	}
	return "cd " + quote(dir) + " && " + strings.Join(words, " "), nil
}

// InGuest is the environment variable that commands in the guest have.
const InGuest = "KILN_LAB_IN_GUEST"

// quote returns a word of sh(1).
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// SaveLogs copies the logs of the lab in the guest to a directory of the host. It does nothing if the guest does not run.
func (d Dir) SaveLogs(ctx context.Context, to string) error {
	if running, err := d.Running(); !running {
		return err
	}
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(to, 0o755)); err != nil {
		return fmt.Errorf("make the directory of logs: %w", err)
	}
	unpack := exec.CommandContext(ctx, "tar", "--extract", "--no-same-owner", "--directory="+to)
	archive, err := unpack.StdinPipe()
	if err == nil {
		err = unpack.Start()
	}
	if err != nil {
		return fmt.Errorf("unpack the logs: %w", err)
	}
	logs := filepath.Join(d.state(), "logs")
	// tar ends with 1 if a program has written to a file meanwhile.
	script := "if test -d " + quote(logs) + "; then tar --create --ignore-failed-read --directory=" + quote(logs) +
		" . || test $? = 1; else tar --create --files-from=/dev/null; fi"
	err = d.Run(ctx, machine.Command{Args: []string{"/bin/sh", "-c", script}, Stdout: archive, Stderr: io.Discard})
	return errors.Join(err, archive.Close(), unpack.Wait())
}
