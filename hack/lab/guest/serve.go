// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/machine"
)

// Serve runs commands that come in by SSH (RFC 4254, sessions with "exec"), for the one key of the spec. It runs in the guest.
func Serve(dir string) error {
	s, err := Dir(dir).spec()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.Address.String())
	if err != nil {
		return fmt.Errorf("listen for the host: %w", err)
	}
	log.Print("the guest is up")
	return s.serve(listener)
}

func (s spec) serve(listener net.Listener) error {
	permitted, _, _, _, err := ssh.ParseAuthorizedKey([]byte(s.UserKey))
	if err != nil {
		return fmt.Errorf("parse the key that may log in: %w", err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), permitted.Marshal()) {
			return nil, errors.New("unknown key")
		}
		return nil, nil //nolint:nilnil // no restrictions
	}}
	own, err := ssh.ParsePrivateKey([]byte(s.HostKey))
	if err != nil {
		return fmt.Errorf("parse the guest's key: %w", err)
	}
	config.AddHostKey(own)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept a connection: %w", err)
		}
		go serveConn(conn, config)
	}
}

func serveConn(conn net.Conn, config *ssh.ServerConfig) {
	defer conn.Close()
	_, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		log.Printf("a connection was refused: %v", err)
		return
	}
	go ssh.DiscardRequests(requests)
	for c := range channels {
		if c.ChannelType() != "session" {
			_ = c.Reject(ssh.UnknownChannelType, "only sessions are served")
			continue
		}
		channel, requests, err := c.Accept()
		if err != nil {
			return
		}
		go serveSession(channel, requests)
	}
}

// serveSession runs one command. The end of the session ends the command's process group.
func serveSession(channel ssh.Channel, requests <-chan *ssh.Request) {
	var started *exec.Cmd
	for r := range requests {
		var payload struct{ Text string }
		ok := ssh.Unmarshal(r.Payload, &payload) == nil
		switch {
		case r.Type == "exec" && ok && started == nil:
			started = command(payload.Text, channel)
			err := start(started, channel)
			if ok = err == nil; !ok {
				_, _ = fmt.Fprintln(channel.Stderr(), err)
			}
		case r.Type == "signal" && ok && started != nil && started.Process != nil:
			if s := unix.SignalNum("SIG" + payload.Text); s != 0 {
				_ = unix.Kill(-started.Process.Pid, s)
			}
		default:
			ok = false
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
	}
	if started != nil && started.Process != nil {
		_ = unix.Kill(-started.Process.Pid, unix.SIGKILL)
	}
}

// outputDelay is how long the output of a command is read after its end: daemons that it left may hold it open.
const outputDelay = 2 * time.Second

func command(script string, channel ssh.Channel) *exec.Cmd {
	c := exec.Command("/bin/sh", "-c", script)
	c.Dir = "/"
	c.Env = []string{"PATH=" + machine.Path, "HOME=/root", "LANG=C.UTF-8"}
	c.Stdout, c.Stderr = channel, channel.Stderr()
	c.WaitDelay = outputDelay
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return c
}

// start starts a command, and reports its end on the channel. The input is copied apart from the command, which may end before its input.
func start(c *exec.Cmd, channel ssh.Channel) error {
	input, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return fmt.Errorf("start the command: %w", err)
	}
	go func() {
		_, _ = io.Copy(input, channel)
		_ = input.Close()
	}()
	go func() {
		_ = c.Wait()
		status := c.ProcessState.ExitCode()
		if w, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			status = 128 + int(w.Signal()) // as sh(1)
		}
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{uint32(status)}))
		_ = channel.Close()
	}()
	return nil
}
