// A client of NBD in Go, with nothing but Go's own library: its handshake, TLS as Go speaks it, and many requests in
// flight from as many goroutines.
//
//	go run nbd.go SOCKET EXPORT [DIRECTORY OF CERTIFICATES]
//
// It ends with status 1, and says why, where the disk is not what was written.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
)

const (
	optionStartTLS = 5
	optionGo       = 7
	replyAck       = 1
	replyInfo      = 3
	cmdRead        = 0
	cmdWrite       = 1
	cmdDisconnect  = 2
	cmdFlush       = 3
	cmdTrim        = 4
	flagFUA        = 1
	blockBytes     = 64 << 10
	workers        = 16
	blocksEach     = 8
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type client struct {
	conn    net.Conn
	sending sync.Mutex
	waiting sync.Map // of cookies, the reads' lengths and whom they are for
	cookies uint64
}

type request struct {
	length int
	done   chan error
	data   []byte
}

// option sends an option and reads its answers up to the last; the export's size, if one told it.
func option(conn net.Conn, kind uint32, data []byte) uint64 {
	head := append([]byte("IHAVEOPT"), binary.BigEndian.AppendUint32(nil, kind)...)
	head = binary.BigEndian.AppendUint32(head, uint32(len(data)))
	_, err := conn.Write(append(head, data...))
	check(err)
	var size uint64
	for {
		var answer [20]byte
		_, err := io.ReadFull(conn, answer[:])
		check(err)
		body := make([]byte, binary.BigEndian.Uint32(answer[16:]))
		_, err = io.ReadFull(conn, body)
		check(err)
		switch code := binary.BigEndian.Uint32(answer[12:]); code {
		case replyAck:
			return size
		case replyInfo:
			if binary.BigEndian.Uint16(body) == 0 {
				size = binary.BigEndian.Uint64(body[2:])
			}
		default:
			check(fmt.Errorf("option %d: refused with %#x", kind, code))
		}
	}
}

func tlsConfig(dir string) *tls.Config {
	authority, err := os.ReadFile(filepath.Join(dir, "ca-cert.pem"))
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "client-cert.pem"), filepath.Join(dir, "client-key.pem"))
	check(err)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}, ServerName: "localhost"}
}

func connect(socket, export, certificates string) (*client, uint64) {
	conn, err := net.Dial("unix", socket)
	check(err)
	var greeting [18]byte
	_, err = io.ReadFull(conn, greeting[:])
	check(err)
	_, err = conn.Write([]byte{0, 0, 0, 3})
	check(err)
	if certificates != "" {
		option(conn, optionStartTLS, nil)
		conn = tls.Client(conn, tlsConfig(certificates))
	}
	data := binary.BigEndian.AppendUint32(nil, uint32(len(export)))
	data = append(append(data, export...), 0, 0)
	size := option(conn, optionGo, data)
	c := &client{conn: conn}
	go c.receive()
	return c, size
}

// receive takes replies, in whatever order they come.
func (c *client) receive() {
	for {
		var head [16]byte
		if _, err := io.ReadFull(c.conn, head[:]); err != nil {
			return
		}
		found, ok := c.waiting.LoadAndDelete(binary.BigEndian.Uint64(head[8:]))
		if !ok {
			check(fmt.Errorf("an answer to nothing: %x", head))
		}
		asked := found.(*request)
		if code := binary.BigEndian.Uint32(head[4:]); code != 0 {
			asked.done <- fmt.Errorf("error %d", code)
			continue
		}
		asked.data = make([]byte, asked.length)
		_, err := io.ReadFull(c.conn, asked.data)
		asked.done <- err
	}
}

func (c *client) do(command, flags uint16, offset uint64, length int, data []byte) ([]byte, error) {
	asked := &request{done: make(chan error, 1)}
	if command == cmdRead {
		asked.length = length
	}
	c.sending.Lock()
	c.cookies++
	c.waiting.Store(c.cookies, asked)
	head := binary.BigEndian.AppendUint32(nil, 0x25609513)
	head = binary.BigEndian.AppendUint16(head, flags)
	head = binary.BigEndian.AppendUint16(head, command)
	head = binary.BigEndian.AppendUint64(head, c.cookies)
	head = binary.BigEndian.AppendUint64(head, offset)
	head = binary.BigEndian.AppendUint32(head, uint32(length))
	_, err := c.conn.Write(append(head, data...))
	c.sending.Unlock()
	if err != nil || command == cmdDisconnect {
		return nil, err
	}
	err = <-asked.done
	return asked.data, err
}

func content(worker, block int) []byte {
	return bytes.Repeat([]byte{byte(worker*blocksEach + block + 1)}, blockBytes)
}

func main() {
	certificates := ""
	if len(os.Args) > 3 {
		certificates = os.Args[3]
	}
	c, size := connect(os.Args[1], os.Args[2], certificates)
	var all sync.WaitGroup
	for worker := range workers {
		all.Add(1)
		go func() {
			defer all.Done()
			for block := range blocksEach {
				at := uint64((block*workers + worker) * blockBytes)
				_, err := c.do(cmdWrite, uint16(block%2)*flagFUA, at, blockBytes, content(worker, block))
				check(err)
			}
			for block := range blocksEach {
				at := uint64((block*workers + worker) * blockBytes)
				c.verify(at, content(worker, block))
			}
		}()
	}
	all.Wait()
	_, err := c.do(cmdTrim, 0, 0, blockBytes, nil)
	check(err)
	_, err = c.do(cmdFlush, 0, 0, 0, nil)
	check(err)
	c.verify(0, make([]byte, blockBytes))
	c.verify(blockBytes, content(1, 0))
	if _, err := c.do(cmdRead, 0, size, 512, nil); err == nil {
		check(fmt.Errorf("a read behind the end succeeded"))
	}
	_, err = c.do(cmdDisconnect, 0, 0, 0, nil)
	check(err)
	fmt.Println("verified", workers*blocksEach, "blocks of", size, "bytes")
}

func (c *client) verify(at uint64, want []byte) {
	found, err := c.do(cmdRead, 0, at, len(want), nil)
	check(err)
	if !bytes.Equal(found, want) {
		check(fmt.Errorf("at %d: not what was written", at))
	}
}
