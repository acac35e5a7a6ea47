// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/internal/acllog"
)

// follow begins to read the logs of the nodes that are not followed yet.
func (r *dropsRun) follow(ctx context.Context) error {
	pods, err := r.podsOf(ctx, openVSwitch)
	if err != nil {
		return err
	}
	onNode := map[string]*corev1.Pod{}
	for i := range pods {
		if pod := &pods[i]; pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			onNode[pod.Spec.NodeName] = pod
		}
	}
	opened, opening := make(chan struct{}, maxDropNodes), 0
	for _, node := range r.watched.nodes {
		pod := onNode[node]
		switch {
		case r.followed[node]:
		case pod == nil:
			r.note("drops on node %s are missing: no pod of %s runs there", node, openVSwitch)
		case len(r.followed) == maxDropNodes:
			r.note("drops on node %s are missing: %d logs are followed already", node, maxDropNodes)
		default:
			r.followed[node] = true
			opening++
			go r.readLog(ctx, pod, opened)
		}
	}
	bounded, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	for range opening {
		select {
		case <-opened:
		case <-bounded.Done(): // the others may open later
			return nil
		}
	}
	return nil
}

// openTime bounds the wait for the beginning of all logs.
const openTime = 5 * time.Second

// readLog sends the packets in the log of a node from now on. The last line of the past comes first, and is skipped: without it the kubelet would answer with the next line
// only. So the clocks of nodes do not matter.
func (r *dropsRun) readLog(ctx context.Context, pod *corev1.Pod, opened chan<- struct{}) {
	node, open := pod.Spec.NodeName, sync.OnceFunc(func() { opened <- struct{}{} })
	options := &corev1.PodLogOptions{Container: pod.Spec.Containers[0].Name, Follow: true, TailLines: new(int64(1))}
	stream, err := r.pods.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, options).Stream(ctx)
	if err == nil {
		defer stream.Close()
		open()
		first := true
		err = readLines(stream, func(line string) {
			p, is := acllog.Parse(line)
			if is && !first {
				select {
				case r.packets <- loggedPacket{p, node}:
				case <-ctx.Done():
				}
			}
			first = false
		})
	}
	select {
	case r.ended <- logEnd{node, err.Error()}:
	case <-ctx.Done():
	}
	open()
}

// largestLine is the number of bytes of a line that are read. Longer lines are none of ovn-controller.
const largestLine = 8 << 10

// readLines calls found for each line of a log; longer ones are empty. It returns an error at the end of the log.
func readLines(log io.Reader, found func(line string)) error {
	lines, long := bufio.NewReaderSize(log, largestLine), false
	for {
		line, more, err := lines.ReadLine()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("its pod has ended, or the connection to its node")
		case err != nil:
			return fmt.Errorf("read a log: %w", err)
		case more:
			long = true
		case long:
			found("")
			long = false
		default:
			found(string(line))
		}
	}
}
