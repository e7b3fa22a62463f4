# A web application that takes comments, and has each looked at for spam in the background. It knows nothing of Windlass:
# a job is a row, inserted in the transaction that stores the comment, and a byte to a port says that there is one.
require "active_record"
require "sinatra/base"
require "socket"
require "yaml"

ActiveRecord::Base.establish_connection(ENV.fetch("DATABASE_URL"))
ActiveRecord::Base.logger = nil

class Job < ActiveRecord::Base
  belongs_to :taskable, polymorphic: true

  def retry!(data)
    update!(data: data.to_yaml, status: "pending", locked_queue_id: "")
  end
end

class Comment < ActiveRecord::Base
  has_many :jobs, as: :taskable
end

class App < Sinatra::Base
  set :environment, :production
  set :logging, false

  post "/comments" do
    comment = nil
    ActiveRecord::Base.transaction do
      comment = Comment.create!(text: params[:text])
      comment.jobs.create!(name: "is_spam", status: "pending", data: { text: comment.text }.to_yaml)
      # Something after it goes wrong: neither the comment nor its job has ever been there.
      raise ActiveRecord::Rollback if params[:fails]
    end
    nudge
    halt 422, "rolled back\n" if params[:fails]
    "#{comment.id}\n"
  end

  # The page of a comment asks what has become of its job.
  get "/comments/:id" do
    job = Comment.find(params[:id]).jobs.last
    "#{job.status} #{job.attempts} #{job.details}".strip + "\n"
  end

  # Somebody has mended the comment: its job gets another try.
  put "/comments/:id" do
    comment = Comment.find(params[:id])
    comment.update!(text: params[:text])
    comment.jobs.last.retry!({ text: comment.text })
    nudge
    "again\n"
  end

  # Each request has a thread of its own here, and gives its connection back.
  after { ActiveRecord::Base.clear_active_connections! }

  # After the commit, and only a hint: a datagram may be lost.
  def nudge
    UDPSocket.new.send("1", 0, "127.0.0.1", Integer(ENV.fetch("NUDGE_PORT")))
  end
end

App.run!(bind: "127.0.0.1", port: Integer(ENV.fetch("PORT")), server: "webrick", quiet: true) if $PROGRAM_NAME == __FILE__
