// Transactions, requests and replies of the official Go client.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// half is a message of a transaction, with what is decided at once and then each time it is asked.
type half struct {
	Message outgoing `json:"message"`
	Local   string   `json:"local"`
	Checks  []string `json:"checks"`
}

type transacted struct {
	Reports []sendReport `json:"reports"`
	Checked []received   `json:"checked"`
}

var states = map[string]primitive.LocalTransactionState{
	"COMMIT_MESSAGE":   primitive.CommitMessageState,
	"ROLLBACK_MESSAGE": primitive.RollbackMessageState,
	"UNKNOW":           primitive.UnknowState,
}

// decisions knows halves by their bodies. Of one that is asked about more often than expected, as
// RocketMQ asks about what it has not noted as decided yet, the first decision holds.
type decisions struct {
	lock    sync.Mutex
	halves  map[string]half
	checked []received
}

func (d *decisions) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	return states[d.halves[string(m.Body)].Local]
}

func (d *decisions) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	number := d.times(m.Body)
	d.lock.Lock()
	defer d.lock.Unlock()
	d.checked = append(d.checked, view(m))
	one := d.halves[string(m.Body)]
	if number < len(one.Checks) {
		return states[one.Checks[number]]
	}
	return states[one.Local]
}

func (d *decisions) times(body []byte) int {
	d.lock.Lock()
	defer d.lock.Unlock()
	count := 0
	for _, m := range d.checked {
		if string(m.Body) == string(body) {
			count++
		}
	}
	return count
}

// transact sends halves, each when the one before was asked about as often as was to be, says what
// became of them and goes on until its input ends: what it decides is sent after the listener has
// returned, and Shutdown does not wait for that.
func transact(o options) (any, error) {
	var halves []half
	if err := json.NewDecoder(os.Stdin).Decode(&halves); err != nil {
		return nil, err
	}
	decides := &decisions{halves: map[string]half{}, checked: []received{}}
	for _, one := range halves {
		decides.halves[string(one.Message.Body)] = one
	}
	client, err := rocketmq.NewTransactionProducer(decides,
		producer.WithNameServer([]string{o.namesrv}),
		producer.WithGroupName(o.group))
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	reports := []sendReport{}
	for _, one := range halves {
		result, err := client.SendMessageInTransaction(context.Background(), one.Message.message(o.topic))
		if err != nil {
			return nil, err
		}
		reports = append(reports, report(result.SendResult))
		deadline := time.Now().Add(o.timeout)
		for decides.times(one.Message.Body) < len(one.Checks) && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
	}
	if err := decides.print(reports); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return nil, err
	}
	return nil, client.Shutdown()
}

func (d *decisions) print(reports []sendReport) error {
	d.lock.Lock()
	defer d.lock.Unlock()
	return json.NewEncoder(os.Stdout).Encode(transacted{reports, d.checked})
}

const answeredWithin = 3 * time.Second

// request asks until there is an answer. A broker can't send it to a producer of which it has not
// heard yet, and this client may say that it is there only after it has asked.
func request(o options) (any, error) {
	body, err := io.ReadAll(os.Stdin)
	if err != nil {
		return nil, err
	}
	client, err := startProducer(o, o.group)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(o.timeout); time.Now().Before(deadline); {
		message := primitive.NewMessage(o.topic, body)
		var answer *primitive.Message
		if answer, err = client.Request(context.Background(), answeredWithin, message); err == nil {
			return answer.Body, client.Shutdown()
		}
	}
	return nil, err
}

// reply answers each message of a topic with its body behind "re: ", and tells which they were.
func reply(o options) (any, error) {
	answering, err := startProducer(o, o.group+"_answering")
	if err != nil {
		return nil, err
	}
	asked := make(chan received, 1024)
	client, err := startConsumer(o, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			asked <- view(message)
			answer, err := consumer.CreateReplyMessage(message, nil)
			if err != nil {
				return consumer.ConsumeRetryLater, err
			}
			answer.Body = append([]byte("re: "), message.Body...) // it would take it for properties
			if _, err := answering.SendSync(context.Background(), answer); err != nil {
				return consumer.ConsumeRetryLater, err
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadAll(os.Stdin); err != nil {
		return nil, err
	}
	return drain(asked), errors.Join(client.Shutdown(), answering.Shutdown())
}
